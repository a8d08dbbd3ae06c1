"""Losses and gradients of a block of clients: one client plainly, or many under ``vmap``."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedgradnorm._engines.heads import head_gradient, leaves
from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._state.table import BUFFER, OWN, Row
from fedgradnorm.models._input_rows import Inputs
from fedgradnorm.tasks._task import Task


class Batch(Protocol):
    """The examples that a block of clients reads, by step: client after client."""

    def own_rows(self, step: int) -> Tensor:
        """The examples' numbers among those of their client, ``[rows, batch]``."""

    def part(self, some: slice) -> Batch:
        """The batches of some of the clients."""

    def x(self, step: int) -> Inputs:
        """Inputs ``[rows x batch, ...]``."""

    def y(self, step: int) -> Tensor:
        """Targets ``[rows x batch, ...]``."""


class BlockGradients:
    """Gradients of each client's mean loss on its batches.

    ``rows`` clients run under ``vmap``. With ``rows`` None there is one client, whose ``task`` is
    called as it is: the reference. In a ``pure`` network, without dropout and batch statistics, the
    first step on the shared network needs no forward pass: the heads' first step has made it.
    """

    def __init__(
        self, part: ClientPart, batch: Batch, rows: int | None, task: Task, pure: bool = False
    ) -> None:
        self._part, self._batch, self._rows, self._task = part, batch, rows, task
        self._pure = pure and not part.reaches_in
        self._passed: tuple[Row, Tensor] | None = None

    def of(
        self, omega: Tensor, row: Row, step: int, *, shared: bool, own: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Losses at batch ``step`` and the gradients that are asked for."""
        x, y = self._batch.x(step), self._batch.y(step)
        passed, self._passed = self._passed, None
        if self._part.reaches_in:
            return self._through(omega, row, x, y, shared=shared, own=own)
        again = self._pure and step == 0
        if shared and again and passed is not None:
            net, features = passed
        else:
            net = leaves(self._part.shared, omega, "network.", shared or again)
            with torch.set_grad_enabled(shared or again):
                features = self._run("features", net, self._own(row, False), x)
        if again and not shared:
            self._passed = net, features
        losses, back, gradient = self._heads(row, features, y, own=own, inputs=shared)
        if not shared:
            return losses, None, gradient
        found = torch.autograd.grad(features, list(net.values()), back, allow_unused=True)
        return losses, self._part.shared.rows(found, len(row[OWN]), omega), gradient

    def _through(
        self, omega: Tensor, row: Row, x: Inputs, y: Tensor, *, shared: bool, own: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The same where something of the client's own is in front of the head."""
        part, count = self._part, len(row[OWN])
        net = leaves(part.shared, omega, "network.", shared)
        mine = self._own(row, own)
        losses = self._losses(self._run("all", net, mine, x), y, row)
        trained = [mine[name] for name in part.own.shapes] if own else []
        wanted = [*(net.values() if shared else ()), *trained]
        found = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
        at = len(net) if shared else 0
        return (
            losses.detach(),
            part.shared.rows(found[:at], count, omega) if shared else None,
            part.own.rows(found[at:], count, omega) if own else None,
        )

    def _own(self, row: Row, wanted: bool) -> Row:
        """The client's own tensors by name; gradients of the trained ones may be ``wanted``."""
        buffers = {k.removeprefix(BUFFER): row[k] for k in self._part.buffers}
        return leaves(self._part.own, row[OWN], "", wanted) | buffers

    def _heads(
        self, row: Row, features: Tensor, y: Tensor, *, own: bool, inputs: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Losses on features, d loss / d features, and the heads' gradients."""
        if self._rows is not None:
            return head_gradient(self._part, row, features, y, own=own, inputs=inputs)
        features = features.detach().requires_grad_(inputs)
        mine = self._own(row, own)
        losses = self._task.loss(self._part.run("head", mine, {}, features, None), y)[None]
        trained = [mine[name] for name in self._part.own.shapes] if own else []
        wanted = [*([features] if inputs else ()), *trained]
        found = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
        back = found[0] if inputs else None
        gradient = self._part.own.rows(found[inputs:], 1, features) if own else None
        return losses.detach(), back, gradient

    @torch.no_grad()
    def losses(self, omega: Tensor, row: Row, step: int) -> Tensor:
        """The losses alone."""
        net = leaves(self._part.shared, omega, "network.", False)
        output = self._run("all", net, self._own(row, False), self._batch.x(step))
        return self._losses(output, self._batch.y(step), row)

    def _run(self, what: str, net: Row, mine: Row, x: Inputs) -> Tensor:
        each, common = dict(mine), dict[str, Tensor]()
        for name, value in net.items():
            if value.requires_grad or self._rows is None or value.stride(0) != 0:
                each[name] = value
            else:  # one network for all clients: products of all their examples at once
                common[name] = value[0]
        return self._part.run(what, each, common, x, self._rows)

    def _losses(self, output: Tensor, y: Tensor, row: Row) -> Tensor:
        if self._rows is None:
            return self._task.loss(output, y)[None]
        return self._part.losses(output, y, row)
