"""Whether a network, its inputs and a head fit together."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedgradnorm._checks import shown
from fedgradnorm._errors import ModelError
from fedgradnorm.models._input_rows import Inputs, call


def as_input(
    x: Inputs, network: nn.Module, device: torch.device | str, stem: nn.Module | None = None
) -> Inputs:
    """``x`` as the network takes it: its dtype, unless integers feed an embedding.

    Whole numbers in named inputs and in sequences stay whole numbers. With a ``stem`` in front it
    is that which takes them.
    """
    if not isinstance(x, Tensor):
        return x.to(device, next(network.parameters()).dtype)
    if not x.is_floating_point() and any(
        isinstance(m, nn.Embedding) for m in (stem or network).modules()
    ):
        return x.to(device)
    return x.to(device, dtype=next(network.parameters()).dtype)


@torch.no_grad()
def representation_size(network: nn.Module, x: Inputs, client: str) -> int:
    """Features per row that the network makes of ``x``; a ModelError if no head can take them."""
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
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(x[:2]):
        raise ModelError(
            f"client {client!r}: the shared network returns {shape} for {len(x[:2])} rows; a head "
            "needs (rows, features): end the network with nn.Flatten()"
        )
    return output.shape[1]


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
def check_head(head: nn.Module, features: int, outputs: int, client: str, like: Tensor) -> None:
    """A ModelError unless ``head`` maps ``features`` numbers a row to the task's ``outputs``."""
    was_training = head.training
    head.eval()
    try:
        output = head(like.new_zeros(2, features))
    except Exception as error:
        raise ModelError(
            f"client {client!r}: the shared network gives {features} features, which its head "
            f"cannot take: {str(error).splitlines()[0]}"
        ) from error
    finally:
        head.train(was_training)
    if tuple(output.shape) != (2, outputs):
        raise ModelError(
            f"client {client!r}: its head gives {tuple(output.shape[1:])} numbers a row, its task "
            f"needs {outputs}"
        )
