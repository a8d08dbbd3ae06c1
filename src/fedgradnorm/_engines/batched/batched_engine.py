"""What the fast engines share: all clients' rows in one tensor, all heads in one step.

In the head phase the shared network is frozen, so its outputs are computed once for all clients
and all head steps run on them. Everything lives in the clients' own state, as in the loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.batched.first_losses import FirstLosses
from fedgradnorm._engines.batched.frozen_features import frozen_features
from fedgradnorm._engines.batched.grouping import group_heads
from fedgradnorm._engines.batched.head_optimizers import HeadOptimizers
from fedgradnorm._engines.batched.joined_data import JoinedData
from fedgradnorm._engines.batched.plan import Part, Plan, Planner
from fedgradnorm._engines.batched.row_windows import RowWindows
from fedgradnorm._engines.batched.snapshot import Snapshot
from fedgradnorm._engines.loop import LoopEngine
from fedgradnorm._engines.passes.dense import DensePass
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm._engines.protocol import Engine
from fedgradnorm._round.client_round import LocalSettings
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.tuning import Tuning
from fedgradnorm.models._flat import working_copy


class BatchedEngine(Engine):
    """Base of the engines that run clients together.

    The clients' state and data are a loop engine's. It repeats a round in which something is not
    finite, and so finds out who it was.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        heads: Mapping[str, nn.Module],
        *,
        gauge: Sequence[str],
        how: LocalSettings,
        batch_size: int | None,
        seed: int,
        device: torch.device,
        bf16: bool = False,
    ) -> None:
        assert how.head_optimizer is not None
        self.loop = loop = LoopEngine(
            network,
            clients,
            heads,
            gauge=gauge,
            how=how,
            batch_size=batch_size,
            seed=seed,
            device=device,
            bf16=bf16,
        )
        self.how, self.device = how, device
        self.front = working_copy(network, device, bf16=bf16)
        self.front.module.train()
        self.streams = Streams(device)
        self.dense: DensePass | None = None  # where the network has a closed form
        if not bf16 and DensePass.fits(network, gauge):
            self.dense = DensePass(self.front, gauge, self.streams)
        own_heads = {name: state.head.train() for name, state in loop.states.items()}
        self.groups = group_heads(clients, own_heads, loop.batches.batch)
        self.data = self._joined()
        self.sizes = torch.tensor([float(c.size) for c in clients]).to(device, torch.float64)
        self.optimizers = HeadOptimizers(loop.states, how.head_optimizer, device, self.streams)
        self.first_losses = FirstLosses(loop)
        self.planner = Planner(self.groups, device)
        self.windows = RowWindows(loop.batches, self.data.begin, device)

    def _joined(self) -> JoinedData:
        """All training rows in one tensor, of which the loop's clients keep views."""
        own = self.loop.data
        joined = JoinedData(self.groups, {name: splits["train"] for name, splits in own.items()})
        for name, splits in own.items():
            splits["train"] = joined.inputs_of(name), splits["train"][1]
        return joined

    @property
    def clients(self) -> dict[str, Client]:
        """The clients by name, in the order of the reports' rows."""
        return self.loop.clients

    @property
    def gauge(self) -> Tensor:
        """Where the gauge is in the shared vector."""
        return self.loop.gauge

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
        plan = self.planner.plan(active)
        reports = self.work(shared, self._rows(round_number, plan), plan)
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

    def _rows(self, round_number: int, plan: Plan) -> Tensor:
        """Rows of the joint inputs that a round reads: [steps, joint batch]."""
        rows = self.windows.coming(round_number, 1)[0]
        return rows if plan.columns is None else rows[:, plan.columns]

    def head_phase(self, features: Callable[[int], Tensor], rows: Tensor, plan: Plan) -> None:
        """``head_steps`` updates of all heads on frozen features."""
        self.optimizers.clear()
        for step in range(self.how.head_steps):
            z = features(step)
            for part in self.streams.side_by_side(plan.parts):
                targets = self.targets(part, rows[step, part.rows])
                gradients = part.group.head_gradients(z[part.rows], targets, part.chosen)
                part.group.place_gradients(gradients, part.members)
            self.optimizers.step()

    def targets(self, part: Part, rows: Tensor) -> Tensor:
        """The targets of some rows of the joint inputs, all of a part's clients."""
        return self.data.targets(part.group, rows)

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

    def evaluate(self, shared: Tensor, split: str) -> dict[str, dict[str, float]]:
        """Loss and metrics of every client that has this split."""
        return self.loop.evaluate(shared, split)

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
