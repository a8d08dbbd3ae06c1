"""What the fast engines share: a round of all clients at once, repeated by the loop if it fails.

In the head phase the shared network is frozen, so its outputs are computed once for all clients
and all head steps run on them. Everything lives in the clients' own state, as in the loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._engines.batched.assembly import Assembly
from fedgradnorm._engines.batched.frozen_features import frozen_features
from fedgradnorm._engines.batched.plan import Plan
from fedgradnorm._engines.batched.snapshot import Snapshot
from fedgradnorm._engines.protocol import Engine
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.tuning import Tuning


class BatchedEngine(Assembly, Engine):
    """Base of the engines that run clients together.

    The clients' state and data are a loop engine's. It repeats a round in which something is not
    finite, and so finds out who it was.
    """

    def run_clients(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """Everybody in ``active`` at once; what only one client can spoil is left to the loop."""
        reports = self.run_together(shared, round_number, active)
        return self.run_in_turn(shared, round_number, active) if reports is None else reports

    def run_together(
        self, shared: Tensor, round_number: int, active: Sequence[str]
    ) -> Reports | None:
        """A round of all; None, and nothing has happened, if something is not finite."""
        states = [self.loop.states[name] for name in active]
        before = Snapshot(states)
        self.first_losses.find(shared, active)
        self.optimizers.begin_round(self.loop.rates, round_number)
        plan = self.planner.plan(active)
        reports = self.work(shared, self.rows_of(round_number, plan), plan)
        finite = torch.isfinite(reports.loss_ratio) & torch.isfinite(reports.gauge_norm)
        if not bool((finite | ~reports.active).all()):
            before.restore()
            return None
        for state in states:
            state.rounds += 1
        return reports

    def run_in_turn(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """A round by the loop."""
        reports = self.loop.run_clients(shared, round_number, active)
        self.optimizers.link()  # it has put the moments of those who failed back, as new tensors
        return reports

    @abstractmethod
    def work(self, shared: Tensor, rows: Tensor, plan: Plan) -> Reports:
        """One round of the clients in ``plan`` on ``rows`` [steps, joint batch] of the inputs."""

    def frozen_features(self, rows: Tensor, plan: Plan) -> Callable[[int], Tensor]:
        """The network's outputs for each step in ``rows``."""
        return frozen_features(self.front.module, self.data, rows, plan)

    def trial(self) -> Engine:
        """The loop's."""
        return self.loop.trial()

    def tune_heads(self, shared: Tensor, steps: int, round_number: int) -> None:
        """By the loop."""
        self.loop.tune_heads(shared, steps, round_number)

    def personalize(self, shared: Tensor, how: Tuning) -> dict[str, dict[str, Any]]:
        """By the loop."""
        return self.loop.personalize(shared, how)

    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """By the loop."""
        return self.loop.evaluate(shared, split, names)

    def heads(self) -> dict[str, nn.Module]:
        """Each client's head."""
        return self.loop.heads()

    def state_dict(self) -> dict[str, Any]:
        """All clients' private state, by name."""
        return self.loop.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what any engine's ``state_dict`` returned."""
        self.loop.load_state_dict(state)
        self.optimizers.link()
