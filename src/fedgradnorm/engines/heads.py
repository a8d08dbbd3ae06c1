"""Heads of many clients at once: those of one shape are one batched product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from fedgradnorm.client import Client
from fedgradnorm.client_round import ClientState
from fedgradnorm.engines.closed import (
    ClosedLoss,
    closed_form,
    feature_signal,
    head_gradients,
)
from fedgradnorm.fusing import Fused
from fedgradnorm.tasks import Task


@dataclass
class HeadGroup:
    """Clients whose heads have one shape, one loss function and one batch size.

    Linear heads are stacked: each client's own parameters are views of ``weight[k]``, ``bias[k]``,
    so that its optimiser, its checkpoint and the other engines see the same numbers. Any other
    head forms a group of its own and is called as it is.
    """

    names: list[str]
    positions: Tensor  # rows of the clients in the engine's order
    batch: int
    task: Task
    scale: Tensor  # [clients]: each task's loss_scale
    heads: list[nn.Module]
    weight: Tensor | None = None
    bias: Tensor | None = None
    closed: ClosedLoss | None = None  # of stacked heads with one of the usual losses
    factor: Tensor = field(init=False)  # [clients, 1, 1]: what its signal is multiplied with
    gradients_of: Callable[..., tuple[Tensor, Tensor]] = head_gradients
    signal_of: Callable[..., tuple[Tensor, Tensor, Tensor]] = feature_signal

    def stack(self) -> None:
        """Make the clients' parameters views of one stacked tensor."""
        linear = [head for head in self.heads if _plain_linear(head)]
        if len(linear) != len(self.heads):
            return
        self.weight = torch.stack([head.weight.detach() for head in linear])
        self.bias = torch.stack([head.bias.detach() for head in linear])
        for k, head in enumerate(linear):
            head.weight.data, head.bias.data = self.weight[k], self.bias[k]
        outputs = self.bias.shape[1]
        self.closed = closed_form(self.task.loss_function, self.weight, outputs)
        factor = 1.0 if self.closed is None else self.closed.factor
        self.factor = (self.scale * (factor / self.batch))[:, None, None]

    def parameters(self, chosen: Tensor | None = None) -> list[Tensor]:
        """Leaves to differentiate: of the ``chosen`` members (None: all), or of a lone head."""
        if self.weight is None or self.bias is None:
            return [p for p in self.heads[0].parameters() if p.requires_grad]
        both = (self.weight, self.bias)
        rows = both if chosen is None else tuple(part[chosen] for part in both)
        return [part.detach().requires_grad_() for part in rows]

    def head_gradients(
        self, features: Tensor, targets: Tensor, chosen: Tensor | None
    ) -> Sequence[Tensor]:
        """Gradients of the heads' parameters; ``features`` is [clients x batch, F]."""
        if self.closed is not None:
            return self.gradients_of(self.closed, *self._stacked(features, chosen), targets)
        leaves = self.parameters(chosen)
        losses = self.losses(features, targets, leaves, chosen)
        return torch.autograd.grad(losses.sum(), leaves)

    def signal(
        self, features: Tensor, targets: Tensor, chosen: Tensor | None, with_heads: bool
    ) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """Each client's loss, d loss / d features and, if asked for, the heads' gradients."""
        if self.closed is not None:
            stacked = self._stacked(features, chosen)
            means, back, at_output = self.signal_of(self.closed, *stacked, targets)
            gradients: Sequence[Tensor] = ()
            if with_heads:
                gradients = torch.bmm(at_output.transpose(1, 2), stacked[-1]), at_output.sum(dim=1)
            return means * _some(self.scale, chosen), back.flatten(0, 1), gradients
        features = features.detach().requires_grad_()
        leaves = self.parameters(chosen)
        values = self.losses(features, targets, leaves, chosen)
        wanted = [features, *leaves] if with_heads else [features]
        back, *gradients = torch.autograd.grad(values.sum(), wanted)
        return values.detach(), back, gradients

    def fuse(self) -> None:
        """Let the compiler make few kernels of the many small ones."""
        self.gradients_of, self.signal_of = Fused(head_gradients), Fused(feature_signal)

    def _stacked(
        self, features: Tensor, chosen: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Factor, weights and biases of the members, and their features [clients, batch, F]."""
        assert self.weight is not None
        assert self.bias is not None
        parts = (self.factor, self.weight, self.bias)
        factor, weight, bias = (_some(part, chosen) for part in parts)
        return factor, weight, bias, features.view(len(weight), self.batch, -1)

    def losses(
        self,
        features: Tensor,
        targets: Tensor,
        parameters: Sequence[Tensor],
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Mean loss of each client, for autograd; ``features`` is [clients x batch, F]."""
        scale = self.scale if chosen is None else self.scale[chosen]
        if self.weight is None:
            output = self.heads[0](features)
        else:
            weight, bias = parameters
            shaped = features.view(len(scale), self.batch, -1)
            product = torch.baddbmm(bias[:, None], shaped, weight.transpose(1, 2))
            output = product.flatten(0, 1)
        losses = self.task.loss_function(output, targets).view(len(scale), self.batch)
        return losses.mean(dim=1) * scale

    def place_gradients(self, gradients: Sequence[Tensor], members: Sequence[int]) -> None:
        """Hand each head that takes part its gradient."""
        # Fused optimisers read memory in order and would misread a transposed gradient.
        gradients = [gradient.contiguous() for gradient in gradients]
        if self.weight is None:
            for parameter, gradient in zip(self.parameters(), gradients, strict=True):
                parameter.grad = gradient
            return
        for row, member in enumerate(members):
            head = self.heads[member]
            assert isinstance(head, nn.Linear)
            head.weight.grad, head.bias.grad = gradients[0][row], gradients[1][row]


def _some(rows: Tensor, chosen: Tensor | None) -> Tensor:
    return rows if chosen is None else rows[chosen]


def _plain_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is a linear layer with a bias, and not a class of the user's derived from it."""
    return type(head) is nn.Linear and head.bias is not None and head.weight.requires_grad


def group_heads(
    clients: Sequence[Client], heads: Mapping[str, nn.Module], batch: Mapping[str, int]
) -> list[HeadGroup]:
    """The clients' heads in groups, in the order of each group's first client."""
    keyed: dict[object, list[int]] = {}
    for i, client in enumerate(clients):
        head = heads[client.name]
        # Any other head is alone.
        shape: object = tuple(head.weight.shape) if _plain_linear(head) else i
        keyed.setdefault((shape, client.task.loss_function, batch[client.name]), []).append(i)
    groups = []
    for members in keyed.values():
        names = [clients[i].name for i in members]
        like = next(heads[names[0]].parameters())
        group = HeadGroup(
            names,
            torch.tensor(members, device=like.device),
            batch[names[0]],
            clients[members[0]].task,
            torch.tensor([clients[i].task.loss_scale for i in members]).to(like),
            [heads[name] for name in names],
        )
        group.stack()
        groups.append(group)
    return groups


class Snapshot:
    """Heads and their optimisers' moments as they were, to be put back if a round fails."""

    def __init__(self, states: Sequence[ClientState]) -> None:
        self._states = list(states)
        self._heads = [
            [p.detach().clone() for p in state.head.state_dict().values()] for state in states
        ]
        self._moments = [
            {
                p: {k: v.clone() if isinstance(v, Tensor) else v for k, v in kept.items()}
                for p, kept in state.optimizer.state.items()
            }
            for state in states
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, in place."""
        for state, values, moments in zip(self._states, self._heads, self._moments, strict=True):
            for tensor, value in zip(state.head.state_dict().values(), values, strict=True):
                tensor.copy_(value)
            for parameter, kept in state.optimizer.state.items():
                _put_back(kept, moments.get(parameter, {}))


def _put_back(kept: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Moments as they were: in the tensors that a captured graph may know, where there are any."""
    for key in kept.keys() - before.keys():
        del kept[key]
    for key, value in before.items():
        if isinstance(value, Tensor) and key in kept:
            kept[key].copy_(value)
        else:
            kept[key] = value
