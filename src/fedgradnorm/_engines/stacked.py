"""Several shared steps a round: heads all at once, then each client's own copy of the network.

After its first local step every client has another network, so products can no longer be shared.
On a GPU the copies are stacked and stepped together (torch.func), in chunks that fit memory; on a
CPU, where a single network already fills the cores, one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedgradnorm._engines.batched import BatchedEngine, Part, Plan
from fedgradnorm._engines.passes.dense import DensePass
from fedgradnorm._round.client_round import clip_factors
from fedgradnorm._round.reports import Reports, StackedReports

CHUNK_BYTES = 8 << 30  # of a GPU's memory, for the copies and gradients of one chunk
COPIES = 4  # parameters, gradients, mean gradient, and room to work


class StackedEngine(BatchedEngine):
    """Frozen features for the heads; stacked copies of the shared network for its steps."""

    name = "stacked"

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        copy = COPIES * self.front.vector.numel() * self.front.vector.element_size()
        self._updates: Tensor | None = None
        self._local: dict[str, Tensor] = {}
        self.chunk = max(1, CHUNK_BYTES // copy) if self.device.type == "cuda" else 1
        # The closed form knows one network at a time.
        self._dense = None if self.chunk > 1 else self.dense
        if self._dense is not None:
            self._own = torch.empty_like(self.front.vector)

    def work(self, shared: Tensor, rows: Tensor, plan: Plan) -> Reports:
        """One round of the clients in ``plan``."""
        self.front.use(shared)
        if not self.how.together and self.how.head_steps:
            wanted = rows[: self.how.head_steps]
            self.head_phase(self.frozen_features(wanted, plan), rows, plan)
        if self._updates is None:  # kept: fresh memory of this size costs more than the sums in it
            self._updates = shared.new_empty(len(self.clients), len(shared))
        dense = self._dense
        updates = self._updates
        if dense is None or plan.columns is not None:  # in closed form, whole rows are written
            updates.zero_()
        loss = torch.zeros_like(self.sizes)
        for part in plan.parts:
            if dense is not None:
                self._one_by_one(dense, shared, updates, loss, part, rows)
                continue
            for start in range(0, len(part.members), self.chunk):
                members = part.members[start : start + self.chunk]
                positions = part.positions[start : start + self.chunk]
                step = self._step(part, members, start, rows)
                loss[positions] = self._descend(shared, updates, positions, step)
        if self.how.clip is not None:
            updates *= clip_factors(updates.norm(dim=1), self.how.clip)[:, None]
        return StackedReports(
            active=plan.active,
            size=self.sizes,
            loss=loss,
            loss_ratio=self.first_losses.ratio(loss, plan.active),
            gauge_norm=updates[:, self.gauge].norm(dim=1).double(),
            failed=(),
            updates=updates,
        )

    def _one_by_one(
        self,
        dense: DensePass,
        shared: Tensor,
        updates: Tensor,
        loss: Tensor,
        part: Part,
        rows: Tensor,
    ) -> None:
        """Local SGD of a part's clients in closed form; the products add to the mean gradient.

        Step s leads to ``shared`` - lr (g_1 + ... + g_s), so no step's gradient is kept by itself.
        """
        assert self.how.local_optimizer is not None
        lr, steps, batch = self.how.local_optimizer["lr"], self.how.shared_steps, part.group.batch
        for k, (member, position) in enumerate(
            zip(part.members, part.positions.tolist(), strict=True)
        ):
            mine = slice(part.rows.start + k * batch, part.rows.start + (k + 1) * batch)
            chosen, mean, at = torch.tensor([member]), updates[position], shared
            for number in range(steps):
                here = rows[number][mine]
                z = dense.forward(at, self.data.tensor[here])
                values, signal, heads = part.group.signal(
                    z, self.targets(part, here, chosen), chosen, self.how.together
                )
                dense.gradient(signal, mean, 1 / steps, add=number > 0)
                loss[position] += values[0].double() / steps
                if number + 1 < steps:
                    at = torch.add(shared, mean, alpha=-lr * steps, out=self._own)
                if self.how.together:
                    self.optimizers.clear()
                    part.group.place_gradients(heads, [member])
                    self.optimizers.step()

    def _descend(
        self,
        shared: Tensor,
        updates: Tensor,
        positions: Tensor,
        step: Callable[[dict[str, Tensor], int], tuple[Tensor, tuple[Tensor, ...]]],
    ) -> Tensor:
        """Local SGD of some clients; the mean gradients go to their rows of ``updates``."""
        assert self.how.local_optimizer is not None
        lr, steps = self.how.local_optimizer["lr"], self.how.shared_steps
        local, mean = self._copies(shared, len(positions)), self._means(updates, positions)
        loss = torch.zeros(len(positions), dtype=torch.float64, device=self.device)
        for number in range(steps):
            values, gradients = step(local, number)
            loss += values.detach().double() / steps
            with torch.no_grad():
                torch._foreach_add_(mean, gradients, alpha=1 / steps)
                if number + 1 < steps:
                    torch._foreach_add_(list(local.values()), gradients, alpha=-lr)
        if len(positions) > 1:
            updates[positions] = torch.cat([value.flatten(1) for value in mean], dim=1)
        return loss

    def _copies(self, shared: Tensor, count: int) -> dict[str, Tensor]:
        """``count`` copies of the shared network's parameters, in memory that is used again."""
        shapes = {name: p.shape for name, p in self.front.module.named_parameters()}
        with torch.no_grad():
            for name, part in self.front.slices.items():
                kept = self._local.get(name)
                if kept is None or len(kept) != count:
                    kept = shared.new_empty(count, *shapes[name])
                self._local[name] = kept.detach().copy_(shared[part].view(shapes[name]))
        return {name: value.requires_grad_() for name, value in self._local.items()}

    def _means(self, updates: Tensor, positions: Tensor) -> list[Tensor]:
        """Where the mean gradients are summed: for one client, its row of ``updates`` itself."""
        if len(positions) > 1:
            return [torch.zeros_like(value) for value in self._local.values()]
        row = updates[int(positions[0])]
        return [row[part].view_as(self._local[name]) for name, part in self.front.slices.items()]

    def _step(
        self, part: Part, members: list[int], start: int, rows: Tensor
    ) -> Callable[[dict[str, Tensor], int], tuple[Tensor, tuple[Tensor, ...]]]:
        """Losses and gradients of ``members`` at their local networks, on batch ``number``."""
        group, batch = part.group, part.group.batch
        first = part.rows.start + start * batch
        mine = slice(first, first + len(members) * batch)
        chosen = torch.tensor(members, device=self.device)

        def step(local: dict[str, Tensor], number: int) -> tuple[Tensor, tuple[Tensor, ...]]:
            here = rows[number][mine]
            x = self.data.tensor[here].unflatten(0, (len(members), batch))
            leaves = group.parameters(chosen)
            targets = self.targets(part, here, chosen)
            losses = group.losses(self._outputs(local, x).flatten(0, 1), targets, leaves, chosen)
            wanted = list(local.values()) + (leaves if self.how.together else [])
            gradients = torch.autograd.grad(losses.sum(), wanted)
            if self.how.together:
                self.optimizers.clear()
                group.place_gradients(gradients[len(local) :], members)
                self.optimizers.step()
            return losses, gradients[: len(local)]

        return step

    def _outputs(self, local: dict[str, Tensor], x: Tensor) -> Tensor:
        module = self.front.module
        if len(x) == 1:
            own = {name: value[0] for name, value in local.items()}
            alone: Tensor = functional_call(module, own, (x[0],))
            return alone[None]

        def forward(own: dict[str, Tensor], inputs: Tensor) -> Tensor:
            output: Tensor = functional_call(module, own, (inputs,))
            return output

        outputs: Tensor = vmap(forward)(local, x)
        return outputs
