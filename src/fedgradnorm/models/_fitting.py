"""Whether a network, its inputs and a head fit together."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgradnorm._checks import shown
from fedgradnorm._errors import ModelError
from fedgradnorm.models._input_rows import Inputs, call
from fedgradnorm.models._networks import linear_head
from fedgradnorm.models._streamed.rows import Streamed


def as_input(
    x: Inputs, network: nn.Module, device: torch.device | str, stem: nn.Module | None = None
) -> Inputs:
    """``x`` as the network takes it: its dtype, unless integers feed an embedding.

    Whole numbers in named inputs and in sequences stay whole numbers. With a ``stem`` in front it
    is that which takes them.
    """
    if isinstance(x, Streamed):
        return x.placed(lambda part: as_input(part, network, device, stem))
    if not isinstance(x, Tensor):
        return x.to(device, next(network.parameters()).dtype)
    if not x.is_floating_point() and any(
        isinstance(m, nn.Embedding) for m in (stem or network).modules()
    ):
        return x.to(device)
    return x.to(device, dtype=next(network.parameters()).dtype)


def representation_size(network: nn.Module, x: Inputs, client: str) -> int:
    """Features per row that the network makes of ``x``; a ModelError if that is no plain vector."""
    row = representation(network, x, client)
    if len(row) != 1:
        raise _needs_head(client, row)
    return row[0]


@torch.no_grad()
def representation(network: nn.Module, x: Inputs, client: str) -> tuple[int, ...]:
    """The shape of a row that the network makes of ``x``; a ModelError unless it is a tensor's."""
    was_training = network.training
    network.eval()
    try:
        output = call(network, x[:2])
    except Exception as error:
        raise ModelError(
            f"client {client!r}: the shared network cannot take inputs of shape "
            f"{_shape(x)}: {str(error).splitlines()[0]}"
        ) from error
    finally:
        network.train(was_training)
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(output, Tensor) or output.ndim < 2 or len(output) != len(x[:2]):
        raise ModelError(
            f"client {client!r}: the shared network returns {shape} for {len(x[:2])} rows; a head "
            "needs (rows, features): end the network with nn.Flatten()"
        )
    return tuple(output.shape[1:])


def fitting_head(
    row: tuple[int, ...], outputs: int, shape: tuple[int, ...], client: str
) -> nn.Module:
    """The plainest head from a row of the representation to ``outputs``, at each place of a shape.

    A linear layer; at places, on the last axis, or a convolution of size 1 where features come
    first. For a shape with one axis, as of a sequence, the last axis is looked at first.
    """
    if not shape:
        if len(row) != 1:
            raise _needs_head(client, row)
        return linear_head(row[0], outputs)
    last, first = row[:-1] == shape, row[1:] == shape and len(shape) <= len(_CONVOLUTIONS)
    if last and (len(shape) == 1 or not first):
        return nn.Linear(row[-1], outputs)
    if first:
        return _CONVOLUTIONS[len(shape) - 1](row[0], outputs, 1)
    raise ModelError(
        f"client {client!r}: the shared network gives rows of shape {row}; for targets of shape "
        f"{shape} they must be (features, *shape) or (*shape, features), or give the client a head"
    )


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _needs_head(client: str, row: tuple[int, ...]) -> ModelError:
    return ModelError(
        f"client {client!r}: the shared network returns {(2, *row)} for 2 rows; a head needs "
        "(rows, features): end the network with nn.Flatten(), or give the client a head of its own"
    )


def _shape(x: Inputs) -> str:
    return str(tuple(x.shape[1:]) if isinstance(x, Tensor) else x.form())


def own_head(head: object, client: str) -> nn.Module:
    """A copy of the head that a client brings; a ModelError if it is none that can learn."""
    if not isinstance(head, nn.Module):
        raise ModelError(
            f"client {client!r}: its head must be a torch.nn.Module, not {shown(head)}"
        )
    if not any(p.requires_grad for p in head.parameters()):
        raise ModelError(
            f"client {client!r}: its head has no trainable parameters; give it a layer to learn, "
            "or leave head out for a linear one"
        )
    return copy.deepcopy(head)


@torch.no_grad()
def check_head(
    head: nn.Module,
    row: tuple[int, ...],
    fitting: Sequence[tuple[int, ...]],
    client: str,
    like: Tensor,
) -> None:
    """A ModelError unless ``head`` maps a ``row`` of features to one of the ``fitting`` shapes."""
    features = row[0] if len(row) == 1 else row
    was_training = head.training
    head.eval()
    try:
        output = head(like.new_zeros(2, *row))
    except Exception as error:
        raise ModelError(
            f"client {client!r}: the shared network gives {features} features, which its head "
            f"cannot take: {str(error).splitlines()[0]}"
        ) from error
    finally:
        head.train(was_training)
    if len(output) != 2 or tuple(output.shape[1:]) not in fitting:
        needed = " or ".join(str(shape[0] if len(shape) == 1 else shape) for shape in fitting)
        raise ModelError(
            f"client {client!r}: its head gives {tuple(output.shape[1:])} numbers a row, its task "
            f"needs {needed}"
        )
