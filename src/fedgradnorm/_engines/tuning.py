"""A network of one's own at the end: a client tunes a private copy on its own examples.

Source: fine-tuning after federated training, as in Yu, Bagdasaryan and Shmatikov, "Salvaging
federated learning by local adaptation" (2020), with the step chosen by the client's own validation
examples. Step 0 is among those to choose from, so a client's validation loss never grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines.gradients import BlockGradients
from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._round.tuning import Tuning
from fedgradnorm._state.layout import Layout
from fedgradnorm._state.table import OWN, Row


def tune(
    part: ClientPart,
    gradients: BlockGradients | None,
    row: Row,
    omega: Tensor,
    how: Tuning,
    measure: Callable[[], float] | None,
) -> dict[str, Any]:
    """Tune a client's own parameters and, of its network ``omega`` [1, P], those of ``how``.

    Both end at the chosen step. ``measure`` gives the validation loss of what ``row`` and ``omega``
    hold; without it the last step is taken, if its numbers are finite. Returns what was kept.
    """
    step = _Stepper(part, gradients, row, omega, how)
    before = math.nan if measure is None else measure()
    best = _Best(row, omega, before)
    for number in range(1, how.steps + 1):
        step(number - 1)
        if measure is not None and (number % how.every == 0 or number == how.steps):
            loss = measure()
            if math.isfinite(loss) and not best.loss <= loss:
                best = _Best(row, omega, loss, number)
    if measure is None and how.steps and _finite(row, omega):
        return {"step": how.steps}
    for key, value in best.row.items():
        row[key].copy_(value)
    omega.copy_(best.omega)
    if measure is None:
        return {"step": best.step}
    return {"step": best.step, "before": _or_none(before), "after": _or_none(best.loss)}


class _Best:
    """The best step so far, and what the client had then; of equal ones the earlier stays."""

    def __init__(self, row: Row, omega: Tensor, loss: float, step: int = 0) -> None:
        self.loss, self.step = loss, step
        self.row = {key: value.clone() for key, value in row.items()}
        self.omega = omega.clone()


class _Stepper:
    """Steps on one batch after another, with a new optimiser.

    A network of which nothing moves is in evaluation mode, as for FedBABU's heads.
    """

    def __init__(
        self,
        part: ClientPart,
        gradients: BlockGradients | None,
        row: Row,
        omega: Tensor,
        how: Tuning,
    ) -> None:
        self._part, self._gradients, self._row, self._omega = part, gradients, row, omega
        self._own = optimizers.make(how.optimizer, part.own)
        self._own_state = self._started(self._own, row[OWN][0])
        wanted = {
            name: part.shared.shapes[name] for name in part.shared.shapes if name in how.parameters
        }
        self._moved = torch.cat(
            [torch.arange(part.shared.slices[n].start, part.shared.slices[n].stop) for n in wanted]
            or [torch.empty(0, dtype=torch.int64)]
        ).to(omega.device)
        self._network = optimizers.make(how.optimizer, Layout(wanted))
        self._network_state = self._started(self._network, omega[0, self._moved])

    @staticmethod
    def _started(optimizer: optimizers.Optimizer, like: Tensor) -> optimizers.State:
        return {key: value[None].clone() for key, value in optimizer.start(like).items()}

    def __call__(self, number: int) -> None:
        """One step, on the batch of this number."""
        assert self._gradients is not None
        moves = len(self._moved) > 0
        whole = self._part.whole
        whole.train(moves)
        self._part.head.train()
        if self._part.stem is not None:
            self._part.stem.train(moves)
        _, network, own = self._gradients.of(self._omega, self._row, number, shared=moves, own=True)
        assert own is not None
        self._own.step(self._row[OWN], own, self._own_state)
        if network is not None:
            some = self._omega[:, self._moved]
            self._network.step(some, network[:, self._moved], self._network_state)
            self._omega[:, self._moved] = some


def _finite(row: Row, omega: Tensor) -> bool:
    """Whether all numbers that the client has now can be used."""
    return all(bool(torch.isfinite(part).all()) for part in (omega, *row.values()))


def _or_none(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
