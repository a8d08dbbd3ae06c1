"""Personal networks at the end: each client tunes a private copy on its own examples.

Source: fine-tuning after federated training, as in Yu, Bagdasaryan and Shmatikov, "Salvaging
federated learning by local adaptation" (2020), with the step chosen by the client's own validation
examples. Step 0 is among those to choose from, so a client's validation loss never grows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines.gradients import BlockGradients
from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._errors import listed
from fedgradnorm._state.table import OWN, Layout, Row

log = logging.getLogger("fedgradnorm")

MEASURED = 20
"""How often the validation loss is evaluated during tuning, about."""


@dataclass(frozen=True)
class Tuning:
    """How clients tune: ``steps`` on the head and these parameters of the network.

    ``first`` is the number of the first batch, counted from the run's start.
    """

    steps: int
    optimizer: Mapping[str, Any]
    parameters: tuple[str, ...]
    first: int

    @property
    def every(self) -> int:
        """Steps between two measurements of the validation loss."""
        return max(1, self.steps // MEASURED)


def tune(
    part: ClientPart,
    gradients: BlockGradients | None,
    row: Row,
    networks: Tensor,
    how: Tuning,
    measure: Callable[[], float] | None,
) -> dict[str, Any]:
    """Tune a client's own parameters and those of its network, ``networks`` [1, P], in ``how``.

    Both end at the chosen step. ``measure`` gives the validation loss of ``row`` and ``networks``
    as they are; without it the last step is taken, if its numbers are finite. Returns what was
    saved.
    """
    shapes = {name: s for name, s in part.shared.shapes.items() if name in how.parameters}
    places = [torch.arange(s.start, s.stop) for n, s in part.shared.slices.items() if n in shapes]
    moved = torch.cat([torch.empty(0, dtype=torch.int64), *places]).to(networks.device)
    head = optimizers.make(how.optimizer, part.own)
    network = optimizers.make(how.optimizer, Layout(shapes))
    head_state = {k: v[None].clone() for k, v in head.start(row[OWN][0]).items()}
    network_state = {k: v[None].clone() for k, v in network.start(networks[0, moved]).items()}
    everything = [networks, *row.values()]
    before = best = math.nan if measure is None else measure()
    chosen, kept = 0, [values.clone() for values in everything]
    for number in range(1, how.steps + 1):
        assert gradients is not None
        part.whole.train(bool(places))  # a network of which nothing moves is in evaluation mode
        part.head.train()
        _, shared, own = gradients.of(networks, row, number - 1, shared=bool(places), own=True)
        assert own is not None
        head.step(row[OWN], own, head_state)
        if shared is not None:
            some = networks[:, moved]
            network.step(some, shared[:, moved], network_state)
            networks[:, moved] = some
        if measure is not None and (number % how.every == 0 or number == how.steps):
            loss = measure()
            if math.isfinite(loss) and not best <= loss:  # of equal ones the earlier stays
                best, chosen, kept = loss, number, [values.clone() for values in everything]
    finite = (bool(torch.isfinite(values).all()) for values in everything)
    if measure is None and how.steps and all(finite):
        return {"step": how.steps}
    for values, copied in zip(everything, kept, strict=True):
        values.copy_(copied)
    if measure is None:
        return {"step": chosen}
    losses = {"before": before, "after": best}
    return {"step": chosen, **{k: v if math.isfinite(v) else None for k, v in losses.items()}}


def log_personal(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Log how many clients keep what they tuned, and who had no examples to tell by."""
    judged = [one for one in kept.values() if "after" in one]
    if judged:
        moved = sum(one["step"] > 0 for one in judged)
        log.info("personalize: %d of %d clients keep what they tuned", moved, len(judged))
    if blind := listed([name for name, one in kept.items() if "after" not in one]):
        log.info("personalize: no validation examples, so the last step is taken: %s", blind)
