"""Losses and gradients of a block of clients: one client plainly, or many under ``vmap``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgradnorm._engines.examples import Batch, Block, Examples
from fedgradnorm._engines.parts import PLACE, SCALE, SHARE, ClientPart
from fedgradnorm._round.evaluation import in_parts
from fedgradnorm._state.table import BUFFER, OWN, Layout, Row
from fedgradnorm.models._input_rows import Inputs, call, concatenated
from fedgradnorm.tasks._measures import binary_cross_entropy, cross_entropy, squared_error
from fedgradnorm.tasks._task import Task


class BlockGradients:
    """Gradients of each client's mean loss on its batches.

    ``rows`` clients run under ``vmap``. With ``rows`` None there is one client, whose ``task`` is
    called as it is: the reference. In a ``pure`` network, without dropout and batch statistics, the
    first step on the shared network needs no forward pass: the heads' first step has made it.

    The shared network's gradient of step 0 is written into ``first``, and those of other steps into
    ``later``, where these are given.
    """

    def __init__(
        self,
        part: ClientPart,
        batch: Batch,
        rows: int | None,
        task: Task,
        pure: bool = False,
        first: Tensor | None = None,
        later: Tensor | None = None,
    ) -> None:
        self._part, self._batch, self._rows, self._task = part, batch, rows, task
        self._pure = pure and not part.reaches_in
        self._first, self._later = first, later
        self._passed: tuple[Row, Tensor] | None = None

    def of(
        self, networks: Tensor, row: Row, step: int, *, shared: bool, own: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Losses at batch ``step`` and the gradients that are asked for."""
        part, count = self._part, len(row[OWN])
        x, y, out = self._batch.x(step), self._batch.y(step), self._later if step else self._first
        if part.reaches_in:  # something of the client's own is in front of the head
            net, mine = leaves(part.shared, networks, "network.", shared), self._own(row, own)
            losses = self._losses(self._run("all", net, mine, x), y, row)
            trained = [mine[name] for name in part.own.shapes] if own else []
            wanted = [*(net.values() if shared else ()), *trained]
            found = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
            at = len(net) if shared else 0
            gradient = part.own.rows(found[at:], count, networks) if own else None
            losses = losses.detach()
        else:
            passed, self._passed = self._passed, None
            again = self._pure and step == 0
            if shared and again and passed is not None:
                net, features = passed
            else:
                net = leaves(part.shared, networks, "network.", shared or again)
                with torch.set_grad_enabled(shared or again):
                    features = self._run("features", net, self._own(row, False), x)
            if again and not shared:
                self._passed = net, features
            losses, back, gradient = self._heads(row, features, y, own=own, inputs=shared)
            if shared:
                found = torch.autograd.grad(features, list(net.values()), back, allow_unused=True)
        if not shared:
            return losses, None, gradient
        return losses, part.shared.rows(found[: len(net)], count, networks, out), gradient

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
        features, mine = features.detach().requires_grad_(inputs), self._own(row, own)
        output = self._part.run("head", mine, {}, features.clone(), None)  # it may begin in place
        losses = self._task.loss(output, y)[None]
        trained = {name: mine[name] for name in self._part.own.shapes}
        return _differentiated(self._part, losses, features, trained, own=own, inputs=inputs)

    @torch.no_grad()
    def losses(self, networks: Tensor, row: Row, step: int) -> Tensor:
        net = leaves(self._part.shared, networks, "network.", False)
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


def leaves(layout: Layout, rows: Tensor, prefix: str, wanted: bool) -> Row:
    """Tensors in rows by name; those whose gradient is ``wanted`` are leaves of a new graph."""
    views = layout.views(rows.detach())
    return {f"{prefix}{name}": view.requires_grad_(wanted) for name, view in views.items()}


def frozen_features(
    network: nn.Module,
    examples: Examples,
    group: Block,
    batch: Batch,
    steps: range,
    every_visit: bool,
) -> Callable[[int], Tensor]:
    """What the frozen network makes of a block's batches, by step.

    Where the steps visit the examples more than once, all examples of the clients are computed
    instead of ``every_visit``.
    """
    read = len(group.names) * len(steps) * group.part.batch
    known = sum(examples.batches.sizes[name] for name in group.names)
    if every_visit or read < known or not all(name in examples.where for name in group.names):
        parts = {step: _forward(network, batch.x(step)) for step in steps}
        return parts.__getitem__
    inputs = [examples.existing(name, "train")[0] for name in group.names]
    table = _forward(network, concatenated(inputs))
    sizes = group.part.rows[PLACE].index_select(0, group.index)[:, 2]
    begin = (sizes.cumsum(0) - sizes)[:, None]
    return lambda step: table[(batch.rows[:, step] + begin).reshape(-1)]


@torch.no_grad()
def _forward(network: nn.Module, x: Inputs) -> Tensor:
    """The network's outputs for all examples, so many at a time."""
    return torch.cat([call(network, part) for part in in_parts(x)])


def head_gradient(
    part: ClientPart, row: Row, features: Tensor, y: Tensor, *, own: bool, inputs: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Losses of a block on ``features``, d loss / d features, and the gradients of its heads.

    Losses count only where d loss / d features (``inputs``) is asked for. Linear heads with one of
    the usual losses need no autograd, and a third of its kernels: with output gradients D,
    dW = D^T Z, db = sum D and dZ = D W.
    """
    count = len(row[OWN])
    usual = OUTPUT_GRADIENTS.get(id(part.task.loss_function))
    if usual is None or not part.plain:
        features = features.detach().requires_grad_(inputs)
        mine = leaves(part.own, row[OWN], "", own)
        buffers = {k.removeprefix(BUFFER): row[k] for k in part.buffers}
        losses = part.losses(part.heads_outputs(mine | buffers, features, count), y, row)
        return _differentiated(part, losses, features, mine, own=own, inputs=inputs)
    with torch.no_grad():
        scale, share, heads = row.get(SCALE), row.get(SHARE), part.heads.views(row[OWN])
        weight, bias = heads["weight"], heads["bias"]
        z = features.detach().view(count, -1, features.shape[-1])
        each, d = usual(torch.baddbmm(bias[:, None], z, weight.transpose(1, 2)), y, inputs)
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


def _differentiated(
    part: ClientPart, losses: Tensor, features: Tensor, mine: Row, *, own: bool, inputs: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    wanted = [*([features] if inputs else ()), *(mine.values() if own else ())]
    found = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
    gradient = part.own.rows(found[inputs:], len(losses), features) if own else None
    return losses.detach(), found[0] if inputs else None, gradient


def _of_cross_entropy(output: Tensor, y: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """softmax(output) - 1 at the class."""
    at, key = y.view(*output.shape[:2], 1), (output.device, output.dtype)
    if key not in _MINUS_ONE:  # in a CUDA graph each new constant would be a kernel of its own
        _MINUS_ONE[key] = -torch.ones((), dtype=output.dtype, device=output.device)
    log_p = output.log_softmax(dim=2)
    losses = log_p.gather(2, at)[..., 0].neg() if wanted else output[..., 0]
    return losses, log_p.exp_().scatter_add_(2, at, _MINUS_ONE[key].expand(at.shape))


def _of_squared_error(output: Tensor, y: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """2 (output - target) / outputs."""
    gap = output - y.view_as(output)
    losses = gap.square().mean(dim=2) if wanted else output[..., 0]
    return losses, gap.mul_(2 / output.shape[2])


def _of_binary_cross_entropy(output: Tensor, y: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """(sigmoid(output) - target) / outputs; -log p(y) = log(1 + e^o) - o y."""
    y = y.view_as(output).to(output.dtype)
    losses = (F.softplus(output) - output * y).mean(dim=2) if wanted else output[..., 0]
    return losses, output.sigmoid().sub_(y).div_(output.shape[2])


_MINUS_ONE: dict[tuple[torch.device, torch.dtype], Tensor] = {}

OUTPUT_GRADIENTS = {
    id(cross_entropy): _of_cross_entropy,
    id(squared_error): _of_squared_error,
    id(binary_cross_entropy): _of_binary_cross_entropy,
}
"""Losses ``[clients, batch]``, where they are wanted, and derivatives at outputs ``[..., n]``."""
