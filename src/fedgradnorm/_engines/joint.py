"""One pass for all clients: with one shared step, FedGradNorm costs what joint training costs.

At the start of a round all clients hold the same shared network, so one forward pass serves them
all. The gradient at the last layer comes first in a backward pass: each client's gradient norm is
measured there, the weights are moved, each client's part of the output gradient is scaled by its
weight, and one backward pass gives the aggregate. Nobody's full gradient is ever formed, also where
the weighting needs all inner products of them (see :class:`ProductTap`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._engines.branches import in_branches
from fedgradnorm._engines.gradients import Batch
from fedgradnorm._engines.head_phase import FrozenFeatures
from fedgradnorm._engines.heads import head_gradient
from fedgradnorm._engines.norm_tap import NormTap, ProductTap
from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.local_update import LocalSpec, clipped
from fedgradnorm._round.reports import Reports
from fedgradnorm._state.table import OPTIMIZER, OWN, Group, Row
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import call, concatenated

Block = Group[ClientPart]


@dataclass(frozen=True)
class SharedExamples:
    """Examples of a joint batch that several tasks of one client share, so that each passes once.

    An example of the joint batch is one that passes (``back``), as one of its tasks (``turn``).
    For each that passes, ``first`` is its first place in the joint batch and ``places`` are all of
    them, [passing, tasks]; where there are fewer, the size of the joint batch.
    """

    first: Tensor
    back: Tensor
    turn: Tensor
    places: Tensor

    @classmethod
    def of(
        cls, owners: Sequence[str], batches: Sequence[int], device: torch.device
    ) -> SharedExamples | None:
        """Which examples are the same, ``batches`` of each owner; None where all differ."""
        if len(set(owners)) == len(owners):
            return None
        places: dict[str, list[Tensor]] = {}
        start = 0
        for owner, batch in zip(owners, batches, strict=True):
            places.setdefault(owner, []).append(torch.arange(start, start + batch))
            start += batch
        first = torch.cat([own[0] for own in places.values()])
        back, turn = torch.empty(start, dtype=torch.int64), torch.empty(start, dtype=torch.int64)
        table, passed = torch.full((len(first), max(map(len, places.values()))), start), 0
        for own in places.values():
            rows = torch.arange(passed, passed + len(own[0]))
            for k, mine in enumerate(own):
                back[mine], turn[mine], table[rows, k] = rows, k, mine
            passed += len(own[0])
        return cls(*(part.to(device) for part in (first, back, turn, table)))

    def summed(self, gradient: Tensor) -> Tensor:
        """All tasks' output gradients together, in an order that does not change."""
        return self._with_nothing(gradient)[self.places].sum(dim=1)

    def each_task(
        self, gradient: Tensor, through: Callable[[Tensor], Sequence[Tensor]]
    ) -> list[Tensor]:
        """What ``through`` makes of each task's part, for every example of the joint batch."""
        padded = self._with_nothing(gradient)
        turns = [through(padded[self.places[:, k]]) for k in range(self.places.shape[1])]
        return [torch.stack(parts)[self.turn, self.back] for parts in zip(*turns, strict=True)]

    @staticmethod
    def _with_nothing(gradient: Tensor) -> Tensor:
        return torch.cat([gradient, torch.zeros_like(gradient[:1])])


class JointPass:
    """A forward pass for everybody, the norms of gradients, and the weighted backward pass."""

    def __init__(self, network: FlatNetwork, norm_layer: Sequence[str], products: bool) -> None:
        self.network = network
        self._tap = NormTap(network.module, norm_layer)
        self._products = ProductTap(network.module) if products else None
        self._output = self._gradient = torch.empty(0)
        self._layers: dict[str, tuple[Tensor, Tensor]] = {}
        self._once: SharedExamples | None = None
        self._plan: tuple[object, Any] = (None, None)
        self._owner = torch.empty(0)
        for tap in (self._tap, self._products):
            if tap is not None:
                tap.on = False

    def run(
        self,
        shared: Tensor,
        groups: Sequence[Block],
        rows: Sequence[Row],
        batches: Sequence[Batch],
        spec: LocalSpec,
        options: Mapping[str, Any] | None,
        owners: Sequence[str],
        later: Callable[[Block, Batch, int, int], FrozenFeatures],
    ) -> tuple[Tensor, Tensor]:
        """The clients' part of a round: losses and gradient norms, group after group.

        ``later`` gives the features of head steps after the first.
        """
        network, parts = self.network, [group.part for group in groups]
        counts = [len(group.names) for group in groups]
        self._once, self._owner = self._planned(parts, counts, owners)
        x = concatenated([batch.x(0) for batch in batches])
        network.use(shared)
        network.module.train()
        self._output = self._gradient = torch.empty(0)  # the last round's graph must be gone
        taps = [tap for tap in (self._tap, self._products) if tap is not None]
        for tap in taps:
            tap.on = True
        self._output = call(network.module, x if self._once is None else x[self._once.first])
        for tap in taps:
            tap.on = False
        features = self._spread(self._output.detach())
        sizes = [part.batch * count for part, count in zip(parts, counts, strict=True)]
        pieces = [
            partial(self._heads, group, row, batch, z, spec, options, later)
            for group, row, batch, z in zip(
                groups, rows, batches, features.split(sizes), strict=True
            )
        ]
        losses, gradients = zip(*in_branches(pieces, features.device), strict=True)
        self._gradient = torch.cat(gradients)
        norms = self._measured(parts, counts)
        return torch.cat(losses).double(), norms.double().sqrt()

    @staticmethod
    def _heads(
        group: Block,
        row: Row,
        batch: Batch,
        features: Tensor,
        spec: LocalSpec,
        options: Mapping[str, Any] | None,
        later: Callable[[Block, Batch, int, int], FrozenFeatures],
    ) -> tuple[Tensor, Tensor]:
        """The head steps of a part's clients; losses, and d loss / d features."""
        part, steps = group.part, 0 if spec.together else spec.head_steps
        more = later(group, batch, 1, steps) if steps > 1 else None
        for step in range(steps):
            here = more.of(step) if more is not None and step else features
            gradient = head_gradient(part, row, here, batch.y(step), own=True)[2]
            assert gradient is not None
            _step_heads(part, row, gradient, spec, options)
        own = spec.together
        losses, back, gradient = head_gradient(
            part, row, features, batch.y(0), own=own, inputs=True
        )
        assert back is not None
        if gradient is not None:
            _step_heads(part, row, gradient, spec, options)
        return losses, back

    def _planned(
        self, parts: Sequence[ClientPart], counts: Sequence[int], owners: Sequence[str]
    ) -> tuple[SharedExamples | None, Tensor]:
        """Which examples are shared, and whose each is; kept while the same clients take part."""
        key = (tuple(owners), tuple(counts), tuple(map(id, parts)))
        if self._plan[0] != key:
            sizes = [part.batch for part, n in zip(parts, counts, strict=True) for _ in range(n)]
            device = self.network.vector.device
            once = SharedExamples.of(owners, sizes, device)
            owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(
                device
            )
            self._plan = key, (once, owner)
        found: tuple[SharedExamples | None, Tensor] = self._plan[1]
        return found

    def _spread(self, values: Tensor) -> Tensor:
        return values if self._once is None else values[self._once.back]

    def _measured(self, parts: Sequence[ClientPart], counts: Sequence[int]) -> Tensor:
        """Each client's squared gradient norm; clients of one batch size are measured together."""
        at_layer = self._taken(self._tap)
        if self._products is not None:
            self._layers = self._products.with_inputs(self._taken(self._products))
            self._products.seen.clear()
        start = 0
        stretches = list[tuple[int, int, int]]()
        for part, count in zip(parts, counts, strict=True):
            end = start + part.batch * count
            if stretches and stretches[-1][2] == part.batch:
                stretches[-1] = stretches[-1][0], end, part.batch
            else:
                stretches.append((start, end, part.batch))
            start = end
        found = [self._tap.squared(at_layer, slice(a, b), batch) for a, b, batch in stretches]
        self._tap.seen.clear()
        return torch.cat(found)

    def _taken(self, tap: NormTap) -> list[Tensor]:
        """The output gradients of a tap's layers, whose inputs are then those of every example.

        Tasks that share an example have different gradients there, so each goes back by itself.
        """
        if self._once is None:
            return tap.gradients(self._output, self._gradient)
        once = self._once
        found = once.each_task(self._gradient, lambda part: tap.gradients(self._output, part))
        tap.seen = [(owner, inputs[once.back], output) for owner, inputs, output in tap.seen]
        return found

    def backward(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i grad F_i, by one backward pass; one coefficient per client of the pass."""
        if self._products is not None:
            return self._products.summed(self.network, self._layers, coefficients[self._owner])
        gradient = scaled(self._gradient, coefficients[self._owner])
        gradient = gradient if self._once is None else self._once.summed(gradient)
        leaves = [p for p in self.network.module.parameters() if p.requires_grad]
        found = torch.autograd.grad(self._output, leaves, gradient, allow_unused=True)
        return self.network.flatten(found)

    def gram(self, clients: int) -> Tensor:
        """update_i . update_j for all pairs of clients of the pass."""
        assert self._products is not None
        return self._products.gram(self._layers, self._owner, clients)

    @property
    def forms_products(self) -> bool:
        """Whether it was made for inner products."""
        return self._products is not None


def _step_heads(
    part: ClientPart,
    row: Row,
    gradient: Tensor,
    spec: LocalSpec,
    options: Mapping[str, Any] | None,
) -> None:
    state = {k.removeprefix(OPTIMIZER): v for k, v in row.items() if k.startswith(OPTIMIZER)}
    part.head_optimizer.step(row[OWN], clipped(gradient, spec.head_clip), state, options)


def scaled(gradient: Tensor, factors: Tensor) -> Tensor:
    """Each example's gradient times a factor."""
    return gradient * factors.to(gradient.dtype).reshape(-1, *[1] * (gradient.ndim - 1))


@dataclass(frozen=True)
class JointReports(Reports):
    """Reports that hold one forward pass instead of N gradients."""

    joint: JointPass
    turns: Tensor  # where the clients of the pass are among those that were asked

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i, by one backward pass."""
        return self.joint.backward(coefficients[self.turns])

    def gradients(self) -> Tensor:
        """Refused: a joint pass forms no single client's update."""
        raise ConfigError("executor 'joint' forms no single gradients; use engine='vmap' or 'loop'")

    def gram(self) -> Tensor:
        """update_i . update_j for all pairs of clients, where the pass was made for it."""
        if not self.joint.forms_products:
            return super().gram()
        found = self.joint.gram(len(self.turns))
        back = torch.empty_like(self.turns)
        back[self.turns] = torch.arange(len(back), device=back.device)
        return found[back[:, None], back]
