"""Heads that are run with one call: what the engines ask of them, and the plainest kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedgradnorm.tasks._missing import labelled, mean_of_labelled
from fedgradnorm.tasks._task import Task

Chosen = Tensor | slice | None
"""The members of a group that take part: by number, the first ones as a slice, None: all."""


@dataclass(frozen=True)
class Members:
    """Clients whose heads have one shape, one loss function and one batch size."""

    names: list[str]
    positions: Tensor  # rows of the clients in the engine's order
    batch: int
    task: Task
    scale: Tensor  # [clients]: each task's loss_scale
    weights: Tensor | None = None  # [clients, groups, classes]: of a loss that weighs classes


class HeadGroup(ABC):
    """The heads of some clients. Gradients are autograd's; a kind of heads may know better.

    ``chosen`` are the members that take part. ``features`` is [clients x batch, F].
    """

    def __init__(self, members: Members) -> None:
        self.names, self.positions = members.names, members.positions
        self.batch, self.task, self.scale = members.batch, members.task, members.scale
        self.weights = members.weights

    @abstractmethod
    def parameters(self, chosen: Chosen = None) -> list[Tensor]:
        """Leaves to differentiate."""

    @abstractmethod
    def outputs(self, features: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """The heads' outputs, a row per row of ``features``."""

    @abstractmethod
    def place_gradients(self, gradients: Sequence[Tensor], members: Sequence[int]) -> None:
        """Hand each head that takes part its gradient."""

    def retask(self, scale: Tensor, weights: Tensor | None) -> None:
        """Let the first members be clients with this ``scale``, and these weights of classes."""
        self.scale[: len(scale)] = scale
        if self.weights is not None and weights is not None:
            self.weights[: len(weights)] = weights

    def losses(
        self,
        features: Tensor,
        targets: Tensor,
        parameters: Sequence[Tensor],
        chosen: Chosen = None,
    ) -> Tensor:
        """Mean loss of each client, for autograd."""
        scale = some(self.scale, chosen)
        rows = self._row_losses(self.outputs(features, parameters), targets, chosen)
        if rows.ndim == 0:  # one number, the mean over the rows: such a client is alone
            return rows * scale
        each = rows.view(len(scale), self.batch)
        if self.task.gaps:
            return mean_of_labelled(each, labelled(targets).view_as(each)) * scale
        return each.mean(dim=1) * scale

    def _row_losses(self, output: Tensor, targets: Tensor, chosen: Chosen) -> Tensor:
        """One loss per row; each client's classes have the weights of that client."""
        if self.weights is None:
            return self.task.row_losses(output, targets)
        own = some(self.weights, chosen)[:, None].expand(-1, self.batch, -1, -1).flatten(0, 1)
        return self.task.row_losses(output, targets, own)

    def head_gradients(self, features: Tensor, targets: Tensor, chosen: Chosen) -> Sequence[Tensor]:
        """Gradients of the heads' parameters."""
        leaves = self.parameters(chosen)
        losses = self.losses(features, targets, leaves, chosen)
        return torch.autograd.grad(losses.sum(), leaves)

    def signal(
        self, features: Tensor, targets: Tensor, chosen: Chosen, with_heads: bool
    ) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """Each client's loss, d loss / d features and, if asked for, the heads' gradients."""
        features = features.detach().requires_grad_()
        leaves = self.parameters(chosen)
        values = self.losses(features, targets, leaves, chosen)
        wanted = [features, *leaves] if with_heads else [features]
        back, *gradients = torch.autograd.grad(values.sum(), wanted)
        return values.detach(), back, gradients

    @torch.no_grad()
    def sums(self, chosen: Chosen) -> Tensor:
        """The sum of each head's numbers: not finite where one of them is not."""
        total = torch.zeros_like(some(self.scale, chosen))
        for part in self.parameters(chosen):
            total += part.reshape(len(total), -1).sum(dim=1)
        return total

    def use_kernels(self) -> bool:
        """Compute with kernels of our own, where there are any for such heads; whether it does."""
        return False

    def fuse(self) -> None:  # noqa: B027  # nothing to fuse is an answer
        """Let the compiler make few kernels of the many small ones, where there are any."""


class LoneHead(HeadGroup):
    """One client's head, of whatever kind, called as it is."""

    def __init__(self, members: Members, head: nn.Module) -> None:
        super().__init__(members)
        self.head = head

    def parameters(self, chosen: Chosen = None) -> list[Tensor]:  # noqa: ARG002
        """The head's own."""
        return [p for p in self.head.parameters() if p.requires_grad]

    def outputs(self, features: Tensor, parameters: Sequence[Tensor]) -> Tensor:  # noqa: ARG002
        """By the head itself, which holds ``parameters``."""
        output: Tensor = self.head(features)
        return output

    def place_gradients(self, gradients: Sequence[Tensor], members: Sequence[int]) -> None:  # noqa: ARG002
        """To the head's parameters."""
        for parameter, gradient in zip(self.parameters(), gradients, strict=True):
            parameter.grad = aligned(gradient)


def some(rows: Tensor, chosen: Chosen) -> Tensor:
    """The ``chosen`` rows, None: all."""
    return rows if chosen is None else rows[chosen]


def aligned(gradient: Tensor) -> Tensor:
    """Row after row in memory: a fused optimiser would misread a transposed gradient."""
    return gradient.contiguous()
