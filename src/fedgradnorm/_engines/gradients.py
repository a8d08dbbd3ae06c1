"""Losses and gradients of a block of clients: one client plainly, or many under ``vmap``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._state.layout import Layout
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
    called as it is: the reference.
    """

    def __init__(self, part: ClientPart, batch: Batch, rows: int | None, task: Task) -> None:
        self._part, self._batch, self._rows, self._task = part, batch, rows, task

    def of(
        self, omega: Tensor, row: Row, step: int, *, shared: bool, own: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Losses at batch ``step`` and the gradients that are asked for."""
        part, count = self._part, len(row[OWN])
        x, y = self._batch.x(step), self._batch.y(step)
        net = leaves(part.shared, omega, "network.", shared)
        mine = leaves(part.own, row[OWN], "", own)
        buffers = {k.removeprefix(BUFFER): row[k] for k in part.buffers}
        if shared or part.reaches_in:
            output = self._run("all", net, mine | buffers, x)
        else:  # a frozen network in front of the heads
            with torch.no_grad():
                features = self._run("features", net, mine | buffers, x)
            output = self._heads(mine | buffers, features)
        losses = self._losses(output, y, row)
        wanted = [*(net.values() if shared else ()), *(mine.values() if own else ())]
        found = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
        at = len(net) if shared else 0
        return (
            losses.detach(),
            part.shared.rows(found[:at], count, omega) if shared else None,
            part.own.rows(found[at:], count, omega) if own else None,
        )

    @torch.no_grad()
    def losses(self, omega: Tensor, row: Row, step: int) -> Tensor:
        """The losses alone."""
        net = leaves(self._part.shared, omega, "network.", False)
        mine = leaves(self._part.own, row[OWN], "", False)
        buffers = {k.removeprefix(BUFFER): row[k] for k in self._part.buffers}
        output = self._run("all", net, mine | buffers, self._batch.x(step))
        return self._losses(output, self._batch.y(step), row)

    def _run(self, what: str, net: Row, mine: Row, x: Inputs) -> Tensor:
        each, common = dict(mine), dict[str, Tensor]()
        for name, value in net.items():
            if value.requires_grad or self._rows is None or value.stride(0) != 0:
                each[name] = value
            else:  # one network for all clients: products of all their examples at once
                common[name] = value[0]
        return self._part.run(what, each, common, x, self._rows)

    def _heads(self, mine: Mapping[str, Tensor], features: Tensor) -> Tensor:
        if self._rows is None:
            return self._part.run("head", mine, {}, features, None)
        return self._part.heads_outputs(mine, features, self._rows)

    def _losses(self, output: Tensor, y: Tensor, row: Row) -> Tensor:
        if self._rows is None:
            return self._task.loss(output, y)[None]
        return self._part.losses(output, y, row)


def leaves(layout: Layout, rows: Tensor, prefix: str, wanted: bool) -> Row:
    """Tensors in rows by name; those whose gradient is ``wanted`` are leaves of a new graph."""
    views = layout.views(rows.detach())
    return {f"{prefix}{name}": view.requires_grad_(wanted) for name, view in views.items()}
