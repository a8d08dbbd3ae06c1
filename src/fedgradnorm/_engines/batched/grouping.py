"""Which heads are run with one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.batched.closed_losses import closed_form
from fedgradnorm._engines.batched.head_group import HeadGroup, LoneHead, Members
from fedgradnorm._engines.batched.stacked_heads import ClosedHeads, StackedHeads
from fedgradnorm.tasks._task import Task
from fedgradnorm.tasks._weighted_losses import WeightedLoss


def group_heads(
    clients: Sequence[Client], heads: Mapping[str, nn.Module], batch: Mapping[str, int]
) -> list[HeadGroup]:
    """The clients' heads in groups, in the order of each group's first client."""
    keyed: dict[object, list[int]] = {}
    for i, client in enumerate(clients):
        head = heads[client.name]
        # Any other head is alone, and so is a loss that is one number for all rows of its call.
        shape: object = tuple(head.weight.shape) if _plain_linear(head) else i
        shape = i if client.task.shape else shape
        shape = i if client.task.joins_rows(torch.as_tensor(client.train[1])) else shape
        key = shape, _loss_key(client), client.task.gaps, batch[client.name]
        keyed.setdefault(key, []).append(i)
    return [_group(clients, heads, batch, rows) for rows in keyed.values()]


def _group(
    clients: Sequence[Client],
    heads: Mapping[str, nn.Module],
    batch: Mapping[str, int],
    rows: Sequence[int],
) -> HeadGroup:
    """The clients in ``rows``, whose heads are alike, as one group."""
    names, task = [clients[i].name for i in rows], clients[rows[0]].task
    own = [heads[name] for name in names]
    like = next(own[0].parameters())
    positions = torch.tensor(rows, device=like.device)
    scale = torch.tensor([clients[i].task.loss_scale for i in rows]).to(like)
    tasks = [clients[i].task for i in rows]
    members = Members(names, positions, batch[names[0]], task, scale, _weights(tasks, like))
    linear = [head for head in own if _plain_linear(head)]
    if not linear or task.shape:
        return LoneHead(members, own[0])
    weight, outputs = linear[0].weight.detach(), linear[0].out_features
    form = closed_form(task.loss_function, weight, outputs) if task.is_plain else None
    return StackedHeads(members, linear) if form is None else ClosedHeads(members, linear, form)


def _loss_key(client: Client) -> object:
    """Clients with one key can be in one call: their weights of classes may differ."""
    loss = client.task.loss_function
    return type(loss) if isinstance(loss, WeightedLoss) else loss


def _weights(tasks: Sequence[Task], like: Tensor) -> Tensor | None:
    """Each client's weights of classes, where the loss has some."""
    losses = [task.loss_function for task in tasks]
    tables = [loss.table(like) for loss in losses if isinstance(loss, WeightedLoss)]
    return torch.stack(tables) if tables else None


def _plain_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is a linear layer with a bias, and not a class of the user's derived from it."""
    return type(head) is nn.Linear and head.bias is not None and head.weight.requires_grad
