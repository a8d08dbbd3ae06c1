"""Heads that clients share, as the server holds them: one flat vector for each group.

``federation.toml`` says who has which task, and how many outputs that has: the server knows no
client's data. From that, the network and the seed it makes the head that a group starts with, the
same as in one process; no client has a say in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError
from fedgradnorm._federation.heads import SharedHeads, head_chance, own_parameters
from fedgradnorm._flower.federation_file import TaskTerms
from fedgradnorm._round.bounds import Bounds, Cut
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import Aggregate
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.layout import FEDERATION
from fedgradnorm.models._networks import linear_head

ALL = "all"  # the name of the one group that everybody is in


class GroupHeads:
    """The heads of all groups between two rounds, and how the next ones come about.

    There are none where each client keeps its own. What clients keep of a head (``head_own``) is no
    part of it here: the server never has it. ``features`` is how many numbers the network makes of
    a row, where the server can know that. ``bounds`` are the server's: a head that goes further
    than they allow from the one that was sent is brought nearer first.
    """

    def __init__(
        self,
        names: Sequence[str],
        tasks: Mapping[str, TaskTerms],
        settings: Settings,
        features: int | None,
        dtype: torch.dtype,
        bounds: Bounds | None = None,
    ) -> None:
        self.bounds, self.rows = bounds, {name: row for row, name in enumerate(names)}
        self.fixed = settings.fixes_heads  # then the mean is what it was, but for rounding
        task = {name: label for label, terms in tasks.items() for name in terms.clients}
        _check_tasks(names, tasks, task, settings)
        members = {name: task.get(name, f"that of {name} alone") for name in names}
        self.shared = SharedHeads(members, settings.heads, torch.device("cpu"))
        self.group: dict[str, str] = {}
        self.vectors: dict[str, Tensor] = {}
        for group in self.shared.groups:
            first, label = group[0], ALL if settings.heads == "all" else task[group[0]]
            self.group |= dict.fromkeys(group, label)
            terms = tasks[task[first]]
            size = terms.features or features
            if size is None:
                raise ConfigError(
                    f"task {task[first]!r} in {FEDERATION}: the server cannot know how many "
                    "features this network makes; add features = their number to the task"
                )
            with head_chance(first, settings.seed):
                head = linear_head(size, terms.outputs).to(dtype=dtype)
            own = own_parameters(head, settings.head_own, first)
            parts = [p.detach().flatten() for n, p in head.named_parameters() if n not in own]
            self.vectors[label] = torch.cat(parts)

    @property
    def largest(self) -> int:
        """Bytes of the largest head."""
        return max((vector.nbytes for vector in self.vectors.values()), default=0)

    def of(self, name: str) -> tuple[str, Tensor | None]:
        """The client's group and its head; no name and None where its head is its own."""
        label = self.group.get(name, "")
        return label, self.vectors[label].clone() if label else None

    def average(
        self, sent: Mapping[str, Tensor], reports: Reports, weights: Tensor, by: Aggregate
    ) -> list[Cut]:
        """Take the heads that a round's clients sent; which of them were over their bound.

        The mean is that of one process, with the shares of the server's own step.
        """
        if self.fixed:
            return []
        near, cuts = self._brought_near(sent)

        def heads(names: Sequence[str]) -> Tensor:
            return torch.stack([near.get(n, self.vectors[self.group[n]]) for n in names])

        for names, rows in list(self.shared.averaged(heads, reports, weights, by)):
            self.vectors[self.group[names[0]]] = rows[0].clone()
        return cuts

    def _brought_near(self, sent: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[Cut]]:
        """Heads clipped to the bound, which depends on the other heads of their group."""
        near, cuts = dict(sent), list[Cut]()
        if self.bounds is None:
            return near, cuts
        for names in self.shared.groups:
            here = [name for name in names if name in sent]
            start = self.vectors[self.group[names[0]]]
            length = torch.tensor([float((sent[n] - start).double().norm()) for n in here])
            factors, over = self.bounds.shortened(length.double())
            for cut in over:
                name = here[cut.row]
                near[name] = start + float(factors[cut.row]) * (sent[name] - start)
                cuts.append(cut._replace(row=self.rows[name]))
        return near, cuts

    def state_dict(self) -> dict[str, Tensor]:
        return {label: vector.clone() for label, vector in self.vectors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        found = {label: vector.shape for label, vector in state.items()}
        if found != {label: vector.shape for label, vector in self.vectors.items()}:
            raise ValueError("shared heads of other groups or shapes")
        self.vectors = dict(state)


def _check_tasks(
    names: Sequence[str], tasks: Mapping[str, Any], task: Mapping[str, str], settings: Settings
) -> None:
    """A ConfigError unless the tasks say what shared heads need to know."""
    if settings.heads == "own":
        return
    if not tasks:
        example = 'sorting = { outputs = 3, clients = ["north", "south"] }'
        raise ConfigError(
            f"heads = {settings.heads!r}: say in {FEDERATION}, under [tasks], who has which task, "
            f"such as {example}"
        )
    missing = [name for name in names if name not in task]
    if settings.heads == "all" and missing:
        raise ConfigError(
            f"heads = 'all' averages everybody's head, but no task in {FEDERATION} names "
            f"{', '.join(missing)}"
        )
    if settings.heads == "all" and len({terms.outputs for terms in tasks.values()}) > 1:
        raise ConfigError(
            f"heads = 'all' needs heads of one shape, but the tasks in {FEDERATION} differ in "
            "outputs; keep heads personal (heads = 'own'), or share them by task (heads = 'task')"
        )
