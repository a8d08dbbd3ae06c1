"""What stands in for a captured GPU graph on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedgradnorm._engines import captured_rounds
from fedgradnorm._engines.batched import Assembly
from fedgradnorm._engines.captured_rounds import OneRound
from fedgradnorm._round.server import COLUMNS


class Stretch:
    """The same rounds as a graph's, taken one by one."""

    LONGEST = 512
    made: ClassVar[int] = 0
    ran: ClassVar[list[tuple[int, int]]] = []
    breaks: ClassVar[bool] = False

    def __init__(
        self,
        clients: Assembly,
        active: Sequence[str],
        one_round: OneRound,
        changed: Sequence[Tensor],
        learnt: Sequence[Tensor],
    ) -> None:
        type(self).made += 1
        self.clients, self.active, self.one_round = clients, list(active), one_round
        self.changed, self.learnt = list(changed), list(learnt)

    def changes(self, tensors: Sequence[Tensor]) -> bool:
        return [t.data_ptr() for t in tensors] == [t.data_ptr() for t in self.changed]

    def run(self, first: int, count: int) -> Tensor | None:
        self.ran.append((first, count))
        before = [tensor.clone() for tensor in self.changed]
        found = torch.stack([self._round(first + k) for k in range(count)])
        finite = all(bool(torch.isfinite(one).all()) for one in (found, *self.learnt))
        if finite and not self.breaks:
            return found
        for tensor, kept in zip(self.changed, before, strict=True):
            tensor.copy_(kept)
        return None

    def _round(self, number: int) -> Tensor:
        plan = self.clients.planner.plan(self.active)
        found = self.one_round(self.clients.rows_of(number, plan), plan)
        return torch.stack([found[key] for key in COLUMNS])


class Work:
    """A graph whose replay does what was to be captured."""

    todo: Callable[[], None]

    def replay(self) -> None:
        self.todo()


def use_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines capture rounds with all that is ours; only CUDA's own graph is another one."""
    kind = captured_rounds.CapturedRounds
    ordinary = kind._round

    def captured(self: captured_rounds.CapturedRounds, one_round: OneRound) -> None:
        vars(self)["_graph"].todo = lambda: ordinary(self, one_round)  # now nothing happens yet

    monkeypatch.setattr(kind, "_round", captured)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Work)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(captured_rounds.RoundsAtOnce, "burst", lambda *_: kind.LONGEST)


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines believe that they can capture rounds."""
    monkeypatch.setattr(captured_rounds, "CapturedRounds", Stretch)
    monkeypatch.setattr(captured_rounds.RoundsAtOnce, "burst", lambda *_: Stretch.LONGEST)
    for name, start in (("made", 0), ("ran", []), ("breaks", False)):
        monkeypatch.setattr(Stretch, name, start)
