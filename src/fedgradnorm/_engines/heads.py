"""Heads of a block of clients on given features: losses and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgradnorm._engines.parts import SCALE, SHARE, ClientPart
from fedgradnorm._state.layout import Layout
from fedgradnorm._state.table import BUFFER, OWN, Row
from fedgradnorm.tasks._measures import binary_cross_entropy, cross_entropy, squared_error


def head_gradient(
    part: ClientPart, row: Row, features: Tensor, y: Tensor, *, own: bool, inputs: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Losses of a block on ``features``, d loss / d features, and the gradients of its heads.

    Losses count only where d loss / d features (``inputs``) is asked for. Linear heads with one of
    the usual losses need no autograd, and a third of its kernels.
    """
    usual = OUTPUT_GRADIENTS.get(id(part.task.loss_function))
    if usual is not None and part.linear and part.task.is_plain and not part.reaches_in:
        return _linear_gradient(part, row, features, y, usual, own, inputs)
    count = len(row[OWN])
    features = features.detach().requires_grad_(inputs)
    mine = leaves(part.own, row[OWN], "", own)
    buffers = {k.removeprefix(BUFFER): row[k] for k in part.buffers}
    losses = part.losses(part.heads_outputs(mine | buffers, features, count), y, row)
    wanted = [*([features] if inputs else ()), *(mine.values() if own else ())]
    found = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
    back = found[0] if inputs else None
    gradient = part.own.rows(found[inputs:], count, features) if own else None
    return losses.detach(), back, gradient


@torch.no_grad()
def _linear_gradient(
    part: ClientPart,
    row: Row,
    features: Tensor,
    y: Tensor,
    output_gradient: Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]],
    own: bool,
    inputs: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The same in closed form: with output gradients D, dW = D^T Z, db = sum D and dZ = D W."""
    count, scale, share = len(row[OWN]), row.get(SCALE), row.get(SHARE)
    heads = part.heads.views(row[OWN])
    weight, bias = heads["weight"], heads["bias"]
    z = features.detach().view(count, -1, features.shape[-1])
    output = torch.baddbmm(bias[:, None], z, weight.transpose(1, 2))
    each, d = output_gradient(output, y, inputs)
    if share is None:
        losses = each.mean(dim=1) if inputs else each[:, 0]
        d.mul_(1 / d.shape[1])
    else:
        losses = (each * share).sum(dim=1) if inputs else each[:, 0]
        d.mul_(share[:, :, None])
    if scale is not None:
        losses = losses * scale
        d.mul_(scale[:, None, None])
    back = torch.bmm(d, weight).flatten(0, 1) if inputs else None
    gradient = None
    if own:
        gradient = torch.cat([torch.bmm(d.transpose(1, 2), z).flatten(1), d.sum(dim=1)], dim=1)
    return losses, back, gradient


def _of_cross_entropy(output: Tensor, y: Tensor, told: bool) -> tuple[Tensor, Tensor]:
    """softmax(output) - 1 at the class."""
    at = y.view(*output.shape[:2], 1)
    log_p = output.log_softmax(dim=2)
    losses = log_p.gather(2, at)[..., 0].neg() if told else output[..., 0]
    return losses, log_p.exp_().scatter_add_(2, at, _minus_one(output).expand(at.shape))


def _of_squared_error(output: Tensor, y: Tensor, told: bool) -> tuple[Tensor, Tensor]:
    """2 (output - target) / outputs."""
    gap = output - y.view_as(output)
    losses = gap.square().mean(dim=2) if told else output[..., 0]
    return losses, gap.mul_(2 / output.shape[2])


def _of_binary_cross_entropy(output: Tensor, y: Tensor, told: bool) -> tuple[Tensor, Tensor]:
    """(sigmoid(output) - target) / outputs; -log p(y) = log(1 + e^o) - o y."""
    y = y.view_as(output).to(output.dtype)
    losses = (F.softplus(output) - output * y).mean(dim=2) if told else output[..., 0]
    return losses, output.sigmoid().sub_(y).div_(output.shape[2])


def _minus_one(like: Tensor) -> Tensor:
    """Made once per device: in a CUDA graph each new constant would be a kernel of its own."""
    key = like.device, like.dtype
    if key not in _MINUS_ONE:
        _MINUS_ONE[key] = -torch.ones((), dtype=like.dtype, device=like.device)
    return _MINUS_ONE[key]


_MINUS_ONE: dict[tuple[torch.device, torch.dtype], Tensor] = {}

OUTPUT_GRADIENTS = {
    id(cross_entropy): _of_cross_entropy,
    id(squared_error): _of_squared_error,
    id(binary_cross_entropy): _of_binary_cross_entropy,
}
"""Losses ``[clients, batch]``, where they are told, and derivatives at outputs ``[..., n]``."""


def leaves(layout: Layout, rows: Tensor, prefix: str, wanted: bool) -> Row:
    """Tensors in rows by name; those whose gradient is ``wanted`` are leaves of a new graph."""
    views = layout.views(rows.detach())
    return {f"{prefix}{name}": view.requires_grad_(wanted) for name, view in views.items()}
