"""Whether a network, its inputs, a client's stem and a head fit together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from fedgradnorm._checks import shown
from fedgradnorm._errors import ModelError
from fedgradnorm.models._given_inputs import check_fits, form_words
from fedgradnorm.models._input_rows import Inputs, call, leaves, row_form
from fedgradnorm.models._networks import linear_head
from fedgradnorm.models._streamed import Streamed


def as_input(
    x: Inputs, network: nn.Module, device: torch.device | str, stem: nn.Module | None = None
) -> Inputs:
    """``x`` as the network takes it: its dtype, unless integers feed an embedding.

    Whole numbers in named inputs and in sequences stay whole numbers. With a ``stem`` in front it
    is that which takes them.
    """
    if isinstance(x, Streamed):
        where, ids = x.feed.where, takes_ids(network, stem)
        dtype = next(network.parameters()).dtype

        def placed(part: Inputs) -> Inputs:
            check_fits(where, part, dtype, ids=ids)
            return as_input(part, network, device, stem)

        return x.placed(placed)
    if not isinstance(x, Tensor):
        return x.to(device, next(network.parameters()).dtype)
    if not x.is_floating_point() and takes_ids(network, stem):
        return x.to(device)
    return x.to(device, dtype=next(network.parameters()).dtype)


def takes_ids(network: nn.Module, stem: nn.Module | None = None) -> bool:
    """Whether whole numbers are looked up in a table, so that they stay what they are."""
    return any(isinstance(m, nn.Embedding) for m in (stem or network).modules())


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
    x = x[torch.arange(min(2, len(x)))]  # copies
    before = [leaf._version for leaf in leaves(x).values()]
    try:
        output = call(network, x)
    except Exception as error:
        raise ModelError(
            f"client {client!r}: the shared network cannot take inputs of shape "
            f"{form_words(row_form(x))}: {str(error).splitlines()[0]}; clients of one network have "
            "inputs of one shape, so change the network or the inputs, or give this client a stem "
            "of its own"
        ) from error
    finally:
        network.train(was_training)
    if before != [leaf._version for leaf in leaves(x).values()]:
        raise ModelError(
            f"client {client!r}: the shared network changes its inputs in place, and with them the "
            "client's data; write x = x / 255 instead of x /= 255, and no inplace=True at the input"
        )
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(output, Tensor) or output.ndim < 2 or len(output) != len(x):
        tensor = isinstance(output, Tensor)
        way = "end the network with nn.Flatten()" if tensor else "let forward return one tensor"
        raise ModelError(
            f"client {client!r}: the shared network returns {shape} for {len(x)} rows; a head "
            f"needs (rows, features): {way}"
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


def lazy_layers(module: nn.Module) -> list[str]:
    """The layers whose sizes are not known yet, such as "0 (LazyLinear)"."""
    return [
        f"{name} ({type(layer).__name__})" if name else type(layer).__name__
        for name, layer in module.named_modules()
        if any(map(is_lazy, [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]))
    ]


@torch.no_grad()
def with_sizes(
    module: nn.Module, run: Callable[[nn.Module], object], client: str, what: str
) -> nn.Module:
    """The module, or a copy of one with lazy layers whose sizes ``run`` finds out by calling it.

    The new parameters are drawn from torch's global generator.
    """
    if not (lazy := lazy_layers(module)):
        return module
    made: Any = UninitializedBuffer
    fresh = {  # torch copies lazy parameters, but not lazy buffers
        id(b): made(device=b.device, dtype=b.dtype) for b in module.buffers() if isinstance(b, made)
    }
    module = copy.deepcopy(module, fresh)
    was_training = module.training
    module.eval()
    try:
        run(module)
        problem = f"layers are not used: {', '.join(left)}" if (left := lazy_layers(module)) else ""
    except Exception as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
    finally:
        module.train(was_training)
    if problem:
        raise ModelError(
            f"client {client!r}: {what} has lazy layers ({', '.join(lazy)}), and their sizes "
            f"cannot be found out on its examples: {problem}; give layers with sizes"
        )
    return module


def check_sized(module: nn.Module, what: str) -> None:
    """A ModelError where a layer has no size yet and there are no examples to find it out."""
    if lazy := lazy_layers(module):
        raise ModelError(
            f"{what} has lazy layers ({', '.join(lazy)}), whose sizes are not known here; call it "
            "once on a batch before, or give layers with sizes"
        )


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


class Stemmed(nn.Module):
    """A client's first part and the shared network behind it; both are the very modules given.

    What the first part gives the network is called with; a dict is its keyword arguments.
    """

    def __init__(self, stem: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.stem, self.network = stem, network

    def forward(self, *positional: Tensor, **named: Tensor) -> Tensor:
        between = self.stem(*positional, **named)
        keywords = isinstance(between, Mapping)
        output: Tensor = self.network(**between) if keywords else self.network(between)
        return output


def with_stem(stem: nn.Module | None, network: nn.Module) -> nn.Module:
    """The network with a client's first part in front of it, where the client has one."""
    return network if stem is None else Stemmed(stem, network)


def own_stem(stem: object, client: str, like: Tensor) -> nn.Module | None:
    """A copy of the first part that a client brings; a ModelError if it is no module."""
    if stem is None:
        return None
    if not isinstance(stem, nn.Module):
        raise ModelError(
            f"client {client!r}: its stem must be a torch.nn.Module, not {shown(stem)}"
        )
    check_sized(stem, f"the stem of client {client!r}")
    return copy.deepcopy(stem).to(like.device, like.dtype)
