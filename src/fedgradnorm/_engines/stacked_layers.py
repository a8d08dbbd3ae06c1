"""Convolutions whose weights differ from client to client, as batched matrix products.

``vmap`` turns them into one with a group per client, for which cuDNN has no fast forward kernel and
no fast gradient of the weights. With the patches of an image as the columns of a matrix X, both are
products: Y = W X and dW = dY X^T.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Pair = tuple[int, int]

KEPT = 1 << 27  # numbers of columns that wait for the backward pass; more are made again
LARGEST = 1 << 29  # numbers of columns that are made at all; else vmap's own convolution is used
FOLDED = 1 << 24  # up to so many, adding columns up is faster than cuDNN


class StackedLayers(TorchFunctionMode):
    """While active, convolutions with a weight per client are products."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or what replaces it."""
        if func is torch.conv1d or func is torch.conv2d:
            found = _convolved(func, *args, **(kwargs or {}))
            if found is not None:
                return found
        return func(*args, **(kwargs or {}))


def _is_stacked(weight: Tensor) -> bool:
    """Whether every client has a weight of its own, and no vmap of the network's is in between."""
    functorch = torch._C._functorch
    if not functorch.is_batchedtensor(weight):
        return False
    return bool(functorch.maybe_get_level(weight) == functorch.maybe_current_level())


def _convolved(
    func: Callable[..., Any],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """``conv1d`` or ``conv2d``, or None where PyTorch's own is to be used."""
    x = input
    if not _is_stacked(weight) or groups != 1 or isinstance(padding, str) or x.ndim != weight.ndim:
        return None
    if torch.is_autocast_enabled(x.device.type):
        kind = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(kind), weight.to(kind)
        bias = None if bias is None else bias.to(kind)
    flat = func is torch.conv1d  # an image of height 1
    if flat:
        x, weight = x.unsqueeze(-2), weight.unsqueeze(-2)
    how = _pair(stride, flat, 1), _pair(padding, flat, 0), _pair(dilation, flat, 1)
    y: Tensor = _Convolution.apply(x, weight, *how)  # type: ignore[no-untyped-call]
    if bias is not None:
        y = y + bias[:, None, None]
    return y.squeeze(-2) if flat else y


def _pair(given: Any, flat: bool, first: int) -> Pair:
    """An option of a convolution for height and width."""
    values = (given,) if isinstance(given, int) else tuple(given)
    return (first if flat else values[0]), values[-1]


class _StackedConvolution(torch.autograd.Function):
    """Images ``[clients, batch, channels, height, width]`` by weights ``[clients, out, ...]``."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair
    ) -> tuple[Tensor, Tensor]:
        columns, places = _columns(x, weight.shape[-2:], stride, padding, dilation)
        return torch.matmul(weight.flatten(2)[:, None], columns).unflatten(-1, places), columns

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, *ctx.how = inputs
        columns = output[1]
        ctx.mark_non_differentiable(columns)
        ctx.folds, ctx.keeps = columns.numel() <= FOLDED, columns.numel() <= KEPT
        ctx.save_for_backward(x, weight, *([columns] if ctx.keeps else []))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight, *kept = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[1]:
            columns = kept[0] if kept else _columns(x, weight.shape[-2:], *ctx.how)[0]
            dw = _weight_gradient(gradient.flatten(3), columns).view_as(weight)
        if ctx.needs_input_grad[0]:
            way = _folded if ctx.folds else _grouped
            dx = way(gradient, x, weight, *ctx.how)
        return dx, dw, None, None, None


class _Convolution(torch.autograd.Function):
    """A convolution as one client's code calls it; ``vmap`` calls that of all clients instead."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        raise NotImplementedError("layers are stacked under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError("layers are stacked under vmap only")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, *how: Pair
    ) -> tuple[Tensor, int]:
        clients, (stride, padding, dilation) = info.batch_size, how
        x, weight = (
            t.expand(clients, *t.shape) if at is None else t.movedim(at, 0)
            for t, at in zip((x, weight), in_dims, strict=False)
        )
        if x.numel() * weight.shape[-2:].numel() > LARGEST:
            images, weights = x.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1)
            grouped = torch.conv2d(images, weights, None, stride, padding, dilation, clients)
            found = grouped.view(len(images), clients, -1, *grouped.shape[2:])
            return found.transpose(0, 1), 0
        return _StackedConvolution.apply(x, weight, *how)[0], 0  # type: ignore[no-untyped-call]


def _weight_gradient(d: Tensor, columns: Tensor) -> Tensor:
    """dW = sum over examples of dY X^T ``[clients, out, channels x kernel]``.

    Where images are small, all examples in one product take less memory than one product each.
    """
    if d.shape[2] <= d.shape[3]:
        return torch.matmul(d, columns.mT).sum(dim=1)
    return torch.bmm(d.transpose(1, 2).flatten(2), columns.transpose(2, 3).flatten(1, 2))


def _columns(
    x: Tensor, kernel: torch.Size, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, Pair]:
    """Patches as columns ``[clients, batch, channels x kernel, places]``, and height and width."""
    (kh, kw), (dh, dw) = kernel, dilation
    if any(padding):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    patches = x.unfold(3, dh * (kh - 1) + 1, stride[0]).unfold(4, dw * (kw - 1) + 1, stride[1])
    patches = patches[..., ::dh, ::dw].permute(0, 1, 2, 5, 6, 3, 4)
    return patches.flatten(5).flatten(2, 4), (patches.shape[-2], patches.shape[-1])


def _folded(
    d: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """The gradient of the images: columns W^T dY, added up where they came from."""
    columns = torch.matmul(weight.flatten(2).mT[:, None], d.flatten(3)).flatten(0, 1)
    kernel = weight.shape[-2:]
    return F.fold(columns, x.shape[-2:], kernel, dilation, padding, stride).view_as(x)


def _grouped(
    d: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """The same by cuDNN, with a group per client: in this direction it has fast kernels."""
    clients = len(x)
    dx: Tensor = torch.ops.aten.convolution_backward(
        d.transpose(0, 1).flatten(1, 2), x.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1),
        None, stride, padding, dilation, False, [0, 0], clients, [True, False, False],
    )[0]  # fmt: skip
    images: Tensor = dx.unflatten(1, (clients, -1)).transpose(0, 1)
    return images
