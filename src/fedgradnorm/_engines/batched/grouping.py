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
from fedgradnorm.models._streamed.rows import some_targets
from fedgradnorm.tasks._task import Task
from fedgradnorm.tasks._weighted_losses import WeightedLoss


def group_heads(
    clients: Sequence[Client], heads: Mapping[str, nn.Module], batch: Mapping[str, int]
) -> list[HeadGroup]:
    """The clients' heads in groups, in the order of each group's first client."""
    keyed: dict[object, list[int]] = {}
    for i, client in enumerate(clients):
        head = heads[client.name]
        shape = tuple(head.weight.shape) if _plain_linear(head) else None
        key = head_key(client, shape, batch[client.name])
        keyed.setdefault((key, None if key else i), []).append(i)
    return [_group(clients, heads, batch, rows) for rows in keyed.values()]


def head_key(client: Client, shape: tuple[int, ...] | None, batch: int) -> tuple[object, ...]:
    """Clients with one key can be in one group; empty for one that has to be alone.

    ``shape`` is that of a plain linear head. Any other head is alone, and so is a loss that is one
    number for all rows of its call.
    """
    task = client.task
    if shape is None or task.shape:
        return ()
    if task.has_own_loss and task.joins_rows(some_targets(client.train[1])):
        return ()
    return shape, _loss_key(client), task.gaps, batch


def _group(
    clients: Sequence[Client],
    heads: Mapping[str, nn.Module],
    batch: Mapping[str, int],
    rows: Sequence[int],
) -> HeadGroup:
    """The clients in ``rows``, whose heads are alike, as one group."""
    own = [heads[clients[i].name] for i in rows]
    positions = torch.tensor(rows, device=next(own[0].parameters()).device)
    some = [clients[i] for i in rows]
    return group_of(some, own, positions, batch[some[0].name])


def group_of(
    clients: Sequence[Client], own: Sequence[nn.Module], positions: Tensor, batch: int
) -> HeadGroup:
    """A group of clients and their heads, which are alike."""
    like = next(own[0].parameters())
    task, tasks = clients[0].task, [client.task for client in clients]
    scale = torch.tensor([task.loss_scale for task in tasks]).to(like)
    names = [client.name for client in clients]
    members = Members(names, positions, batch, task, scale, class_weights(tasks, like))
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


def class_weights(tasks: Sequence[Task], like: Tensor) -> Tensor | None:
    """Each client's weights of classes, where the loss has some."""
    losses = [task.loss_function for task in tasks]
    tables = [loss.table(like) for loss in losses if isinstance(loss, WeightedLoss)]
    return torch.stack(tables) if tables else None


def _plain_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is a linear layer with a bias, and not a class of the user's derived from it."""
    return type(head) is nn.Linear and head.bias is not None and head.weight.requires_grad
