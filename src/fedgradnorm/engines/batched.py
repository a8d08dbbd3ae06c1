"""What the fast engines share: all clients' rows in one tensor, all heads in one step.

In the head phase the shared network is frozen, so its outputs are computed once for all clients
and all head steps run on them. Everything lives in the clients' own state, as in the loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import optimizers
from fedgradnorm.client import Client
from fedgradnorm.client_round import LocalSettings, first_loss
from fedgradnorm.engines.branches import Branches
from fedgradnorm.engines.dense import DensePass
from fedgradnorm.engines.heads import HeadGroup, Snapshot, group_heads
from fedgradnorm.engines.loop import LoopEngine
from fedgradnorm.engines.rows import make_rows
from fedgradnorm.evaluation import in_parts
from fedgradnorm.models import working_copy
from fedgradnorm.reports import Reports

TENSORS_ABREAST = 64  # heads' parameters that are worth an optimiser of their own on a GPU


@dataclass(frozen=True)
class Part:
    """The members of a head group that take part in a round, and where their rows are."""

    group: HeadGroup
    members: list[int]
    chosen: Tensor | None  # None: all members
    positions: Tensor  # the members' rows in the engine's order of clients
    rows: slice  # their rows in the round's joint batch
    base: int  # first row of the group in the joint inputs


@dataclass(frozen=True)
class Plan:
    """Who takes part in a round; ``columns`` of the batch table are theirs (None: all)."""

    parts: list[Part]
    columns: Tensor | None
    owner: Tensor  # the client, as a row of the engine's order, of each row of the joint batch
    positions: Tensor  # all parts' positions, in turn
    active: Tensor

    @property
    def stretches(self) -> list[tuple[slice, int]]:
        """Rows of the joint batch and how many of them are one client's, as few as possible."""
        found: list[tuple[slice, int]] = []
        for part in self.parts:
            if found and found[-1][1] == part.group.batch:
                found[-1] = slice(found[-1][0].start, part.rows.stop), part.group.batch
            else:
                found.append((part.rows, part.group.batch))
        return found


class BatchedEngine(LoopEngine):
    """Base of the engines that run clients together.

    A round in which something is not finite is repeated by the loop, which finds out who it was.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        heads: Mapping[str, nn.Module],
        *,
        how: LocalSettings,
        device: torch.device,
        bf16: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(network, clients, heads, how=how, device=device, bf16=bf16, **settings)
        assert how.head_optimizer is not None
        self.front = working_copy(network, device, bf16=bf16)
        self.front.module.train()
        self.branches = Branches(device)
        self._dense: DensePass | None = None
        if not bf16 and DensePass.fits(network, settings["gauge"]):
            self._dense = DensePass(self.front, settings["gauge"], self.branches)
        own_heads = {name: state.head.train() for name, state in self.states.items()}
        self.groups = group_heads(clients, own_heads, self.batches.batch)
        self._order = [name for group in self.groups for name in group.names]
        self._join_data()
        self._sizes = torch.tensor([float(c.size) for c in clients]).to(device, torch.float64)
        self._optimizers = self._head_optimizers(own_heads)
        self._link()
        self._first, self._first_values = self._sizes, list[float | None]()
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._rows = make_rows(self.batches, self._offset, device)
        self._table, self._table_start = torch.empty(0, dtype=torch.int64), -1

    def _join_data(self) -> None:
        """One tensor of all inputs, group after group; each client keeps a view of its rows."""
        pairs = [self.data[name]["train"] for name in self._order]
        self.inputs = torch.cat([x for x, _ in pairs])
        self._targets = {
            group.names[0]: torch.cat([self.data[name]["train"][1] for name in group.names])
            for group in self.groups
        }
        self._offset, start = {}, 0
        for name, (x, y) in zip(self._order, pairs, strict=True):
            self._offset[name] = start
            self.data[name]["train"] = (self.inputs[start : start + len(x)], y)
            start += len(x)

    def _head_optimizers(self, heads: Mapping[str, nn.Module]) -> list[torch.optim.Optimizer]:
        """One for all heads; on a GPU some more, as a kernel takes few tensors, to run abreast."""
        assert self.how.head_optimizer is not None
        every = [p for head in heads.values() for p in head.parameters()]
        some = max(TENSORS_ABREAST, -(-len(every) // 4)) if self.device.type == "cuda" else None
        parts = [every[k : k + some] for k in range(0, len(every), some)] if some else [every]
        return [optimizers.build(part, self.how.head_optimizer) for part in parts]

    def _link(self) -> None:
        """These optimisers step all heads, but each client's own holds the same moments."""
        for optimizer in self._optimizers:
            mine = {p for group in optimizer.param_groups for p in group["params"]}
            for state in self.states.values():
                for parameter in mine.intersection(state.head.parameters()):
                    optimizer.state[parameter] = state.optimizer.state[parameter]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what any engine's ``state_dict`` returned."""
        super().load_state_dict(state)
        self._link()

    def run_clients(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """Everybody in ``active`` at once; what only one client can spoil is left to the loop."""
        states = [self.states[name] for name in active]
        first_losses = [state.first_loss for state in states]
        self._first_losses(shared, active)
        before = Snapshot(states)
        reports = self.work(shared, self.rows(round_number, active), self.plan(active))
        finite = torch.isfinite(reports.loss_ratio) & torch.isfinite(reports.gauge_norm)
        if not bool((finite | ~reports.active).all()):
            before.restore()
            for state, value in zip(states, first_losses, strict=True):
                state.first_loss = value
            found = super().run_clients(shared, round_number, active)
            self._link()  # the loop has put the moments of those who failed back, as new tensors
            return found
        for state in states:
            state.rounds += 1
        return reports

    @abstractmethod
    def work(self, shared: Tensor, rows: Tensor, plan: Plan) -> Reports:
        """One round of the clients in ``plan`` on ``rows`` [steps, joint batch] of the inputs."""

    def _first_losses(self, shared: Tensor, active: Sequence[str]) -> None:
        kind = self.how.first_loss
        for name in active:
            state = self.states[name]
            if state.first_loss is None and kind != "first_round":
                self.network.vector.copy_(shared)
                task, data = self.clients[name].task, self.data[name]["train"]
                state.first_loss = first_loss(task, state, self.network, data, kind)

    def loss_ratio(self, loss: Tensor, active: Tensor) -> Tensor:
        """F / F_0 of every client; with ``first_round`` a client's first loss is taken over now."""
        states = [self.states[name] for name in self.clients]
        if any(state.first_loss is None for state in states):
            for state, here, value in zip(states, active.tolist(), loss.tolist(), strict=True):
                if here and state.first_loss is None:
                    state.first_loss = value
        values = [state.first_loss for state in states]
        if values != self._first_values:  # kept on the device: a captured round may not copy to it
            tiny = torch.finfo(self.front.vector.dtype).tiny
            first = torch.tensor([value or tiny for value in values], dtype=torch.float64)
            self._first, self._first_values = first.clamp_min(tiny).to(self.device), values
        return loss / self._first

    def plan(self, active: Sequence[str]) -> Plan:
        """Who takes part; kept while the same clients do."""
        key = tuple(active)
        if key not in self._plans:
            self._plans = {key: self._make_plan(set(active))}
        return self._plans[key]

    def _make_plan(self, wanted: set[str]) -> Plan:
        parts, columns, start, column = [], [], 0, 0
        for group in self.groups:
            members = [k for k, name in enumerate(group.names) if name in wanted]
            for k in members:
                first = column + k * group.batch
                columns.append(torch.arange(first, first + group.batch))
            column += len(group.names) * group.batch
            if not members:
                continue
            everybody = len(members) == len(group.names)
            chosen = None if everybody else torch.tensor(members, device=self.device)
            positions = group.positions if chosen is None else group.positions[chosen]
            rows = slice(start, start + group.batch * len(members))
            base = self._offset[group.names[0]]
            parts.append(Part(group, members, chosen, positions, rows, base))
            start = rows.stop
        positions = torch.cat([part.positions for part in parts])
        owner = torch.cat([p.positions.repeat_interleave(p.group.batch) for p in parts])
        active = torch.zeros(len(self.clients), dtype=torch.bool, device=self.device)
        active[owner] = True
        all_columns = start == column
        picked = None if all_columns else torch.cat(columns).to(self.device)
        return Plan(parts, picked, owner, positions, active)

    def rows(self, round_number: int, active: Sequence[str]) -> Tensor:
        """Rows of the joint inputs that a round reads: [steps, joint batch]."""
        rows = self.coming_rows(round_number, 1)[0]
        columns = self.plan(active).columns
        return rows if columns is None else rows[:, columns]

    def coming_rows(self, first: int, most: int) -> Tensor:
        """Rows that everybody reads in rounds from ``first`` on: [rounds, steps, joint batch].

        As many rounds as are drawn together, but no more than ``most``.
        """
        window, steps = self.batches.window, self.how.steps
        start = first - first % window
        if start != self._table_start:
            table = self._rows.draw(start * steps, window * steps)
            self._table = table.view(window, steps, -1)
            self._table_start = start
        return self._table[first - start :][:most]

    def head_phase(self, features: Callable[[int], Tensor], rows: Tensor, plan: Plan) -> None:
        """``head_steps`` updates of all heads on frozen features."""
        self.clear_heads()
        for step in range(self.how.head_steps):
            z = features(step)
            for part in self.side_by_side(plan.parts):
                targets = self.targets(part, rows[step, part.rows])
                gradients = part.group.head_gradients(z[part.rows], targets, part.chosen)
                part.group.place_gradients(gradients, part.members)
            self.step_heads()

    def clear_heads(self) -> None:
        """Forget the heads' gradients: a head without one does not step."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def step_heads(self) -> None:
        """Every head that has a gradient takes a step."""
        for number, optimizer in enumerate(self._optimizers):
            with self.branches.branch(number, when=len(self._optimizers) > 1):
                optimizer.step()
        self.branches.join()

    def side_by_side(self, parts: Sequence[Part]) -> Iterator[Part]:
        """The parts one by one; what is done with each may run beside the others."""
        for number, part in enumerate(parts):
            with self.branches.branch(number % 4):
                yield part
        self.branches.join()

    def targets(self, part: Part, rows: Tensor) -> Tensor:
        """The targets of some rows of the joint inputs, all of a part's clients."""
        return self._targets[part.group.names[0]][rows - part.base]

    @torch.no_grad()
    def frozen_features(self, rows: Tensor, plan: Plan) -> Callable[[int], Tensor]:
        """The network's outputs for each step in ``rows``; no row is computed more often than once.

        Where the steps visit the data more than once, all of the active clients' rows are computed
        instead of all of the visits.
        """
        names = [part.group.names[k] for part in plan.parts for k in part.members]
        stretches = [(self._offset[name], self.clients[name].size) for name in names]
        if rows.numel() < sum(size for _, size in stretches):
            outputs = self._forward(self.inputs[rows.flatten()])
            return lambda step: outputs.view(*rows.shape, -1)[step]
        if plan.columns is None:
            table = self._forward(self.inputs)
        else:
            here = torch.cat([torch.arange(a, a + n, device=self.device) for a, n in stretches])
            outputs = self._forward(self.inputs[here])
            table = outputs.new_empty(len(self.inputs), outputs.shape[1])
            table[here] = outputs
        return lambda step: table[rows[step]]

    def _forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.front.module(part) for part in in_parts(x)])
