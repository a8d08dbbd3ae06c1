"""The paper's two networks, the linear head, and the shared network as one flat vector."""

from __future__ import annotations

import copy
import difflib
import itertools
from collections.abc import Sequence
from types import MethodType

import torch
from torch import Tensor, nn

from fedgradnorm.checks import shown
from fedgradnorm.errors import ModelError
from fedgradnorm.instructions import require_bf16


def network1(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Network 1 (faces): four convolutions, 1x40x40 grey -> 256 numbers.

    The paper does not name an activation; ReLU after every layer is our reading.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), activation(), nn.MaxPool2d(2),
        nn.Conv2d(16, 48, 3), activation(), nn.MaxPool2d(2),
        nn.Conv2d(48, 64, 3), activation(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 2), activation(), nn.Flatten(),
    )  # fmt: skip


def network2(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Network 2 (signals): five linear layers, 256 -> 256 numbers, 3,936,512 parameters.

    >>> sum(p.numel() for p in network2().parameters())
    3936512
    """
    widths = (256, 512, 1024, 2048, 512, 256)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers)


def linear_head(features: int, outputs: int) -> nn.Linear:
    """The paper's personal head: one linear layer."""
    return nn.Linear(features, outputs)


def trainable_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, by name; a ModelError if there are none."""
    named = dict(network.named_parameters())
    if not named:
        raise ModelError("the shared network has no trainable parameters: nothing to learn")
    if not any(p.requires_grad for p in named.values()):
        raise ModelError(
            f"all {len(named)} parameters of the shared network are frozen: nothing to learn; "
            "set requires_grad of those that are to be trained"
        )
    return {name: p for name, p in named.items() if p.requires_grad}


class FlatNetwork:
    """A private copy of a network whose trainable parameters are views of one flat vector.

    ``vector`` is what the server sends and ``gradient`` what a backward pass leaves; both have one
    slice per parameter, in ``slices``. Frozen parameters and buffers stay outside.
    """

    def __init__(self, network: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = copy.deepcopy(network).to(device)
        named = trainable_parameters(self.module)
        kinds = {p.dtype for p in named.values()}
        if len(kinds) > 1:
            raise ModelError(f"the shared network mixes {kinds}; convert it to one, e.g. .float()")
        self.slices: dict[str, slice] = {}
        start = 0
        for name, parameter in named.items():
            self.slices[name] = slice(start, start + parameter.numel())
            start += parameter.numel()
        self.vector = torch.cat([p.detach().flatten() for p in named.values()])
        self.gradient = torch.zeros_like(self.vector)
        for name, parameter in named.items():
            parameter.grad = self.gradient[self.slices[name]].view_as(parameter)
        self.use(self.vector)

    def use(self, vector: Tensor) -> None:
        """Read the parameters straight from ``vector`` from now on, without a copy."""
        self.vector = vector
        for name, parameter in self.module.named_parameters():
            if name in self.slices:
                parameter.data = vector[self.slices[name]].view_as(parameter)

    def flatten(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Gradients of the trainable parameters, in their order, as one vector.

        The vector is this network's own ``gradient`` and is written over by the next call.
        """
        views = [self.gradient[part] for part in self.slices.values()]
        for view, gradient in zip(views, gradients, strict=True):
            if gradient is None:
                view.zero_()
        pairs = [(v, g.flatten()) for v, g in zip(views, gradients, strict=True) if g is not None]
        torch._foreach_copy_([v for v, _ in pairs], [g for _, g in pairs])
        return self.gradient

    @property
    def has_buffers(self) -> bool:
        """Whether the network keeps running statistics or other buffers."""
        return next(self.module.buffers(), None) is not None

    def buffers(self) -> dict[str, Tensor]:
        """A copy of the network's buffers, by name."""
        return {name: b.detach().clone() for name, b in self.module.named_buffers()}

    def load_buffers(self, buffers: dict[str, Tensor]) -> None:
        """Put a client's own running statistics in place."""
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])


def working_copy(network: nn.Module, device: torch.device, *, bf16: bool = False) -> FlatNetwork:
    """A flat copy to train with; on a CPU a stack of convolutions gets channels last in memory.

    With ``bf16`` its products are in bfloat16; parameters, gradients and outputs stay in float32.
    """
    flat = FlatNetwork(network, device)
    if bf16:
        require_bf16(device)
        if flat.vector.dtype != torch.float32:
            raise ModelError(
                f'precision = "bf16" is for networks in float32, this one is in '
                f"{str(flat.vector.dtype).removeprefix('torch.')}; convert it with .float()"
            )
        flat.module.forward = MethodType(_forward_in_bf16, flat.module)
    if device.type == "cpu" and _is_convolutional_stack(network):
        flat.module.register_forward_pre_hook(_channels_last)
    return flat


def _forward_in_bf16(module: nn.Module, *inputs: Tensor) -> Tensor:
    """A network's forward pass with its products in bfloat16, and nothing around it.

    Cast weights are not kept: the next step has others.
    """
    kind = next(module.parameters()).device.type
    with torch.autocast(kind, torch.bfloat16, cache_enabled=False):
        output: Tensor = type(module).forward(module, *inputs)
    return output.float()


def _is_convolutional_stack(network: nn.Module) -> bool:
    """Whether only PyTorch's own layers follow one another, a 2-d convolution first.

    Code of others may look at an image's memory (``view``), so it gets images as they are.
    """
    layers = list(network.modules())[1:] if type(network) is nn.Sequential else []
    own = all(type(layer).__module__.startswith("torch.nn.modules") for layer in layers)
    return own and bool(layers) and type(layers[0]) is nn.Conv2d


def _channels_last(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same images with channels last in memory: on a CPU convolution and pooling like that."""
    (x,) = args
    if x.dim() != 4:
        return args
    if x.shape[1] == 1:  # one channel is last in any order; only the strides must say so
        return (x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2),)
    return (x.contiguous(memory_format=torch.channels_last),)


def as_input(x: Tensor, network: nn.Module, device: torch.device | str) -> Tensor:
    """``x`` as the network takes it: its dtype, unless integers feed an embedding."""
    if not x.is_floating_point() and any(isinstance(m, nn.Embedding) for m in network.modules()):
        return x.to(device)
    return x.to(device, dtype=next(network.parameters()).dtype)


@torch.no_grad()
def representation_size(network: nn.Module, x: Tensor, client: str) -> int:
    """Features per row that the network makes of ``x``; a ModelError if no head can take them."""
    was_training = network.training
    network.eval()
    try:
        output = network(x[:2])
    except Exception as error:
        raise ModelError(
            f"client {client!r}: the shared network cannot take inputs of shape "
            f"{tuple(x.shape[1:])}: {str(error).splitlines()[0]}"
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


def find_gauge(
    network: nn.Module, x: Tensor, gauge: str | Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the parameters whose gradient is measured.

    By default the last layer with a weight matrix that a forward pass of ``x`` reaches, weight and
    bias. ``gauge`` names other layers ("3", "encoder.last") or parameters ("encoder.last.weight").
    """
    if gauge is None:
        return _last_layer(network, x)
    trainable = list(trainable_parameters(network))
    found: list[str] = []
    for part in [gauge] if isinstance(gauge, str) else gauge:
        names = [n for n in trainable if n == part or n.startswith(f"{part}.")]
        if not names:
            layers = list(dict.fromkeys(n.rpartition(".")[0] for n in trainable))
            near = difflib.get_close_matches(part, layers + trainable, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ModelError(
                f"gauge {part!r} is no trainable layer or parameter of the shared network{hint} "
                f"(layers: {', '.join(layers)})"
            )
        found += [n for n in names if n not in found]
    return tuple(found)


def _last_layer(network: nn.Module, x: Tensor) -> tuple[str, ...]:
    """The trainable parameters of the layer that finishes last in a forward pass.

    A layer has a matrix (where none has, vectors will do: norm layers, scales) that the output's
    gradient comes back to. Whatever holds other layers is none: its forward pass ends after theirs,
    but its own parameters (a ViT's tokens and positions) may have been used first.
    """
    order, reached = _traced(network, x)
    modules = dict(network.named_modules())
    named = trainable_parameters(network)
    for least in (2, 1):
        owners = [
            name
            for name, module in modules.items()
            if any(p in reached and p.ndim >= least for p in module.parameters(recurse=False))
        ]
        ran = [name for name in order if name in owners] or owners
        if layers := [name for name in ran if not any(_inside(other, name) for other in ran)]:
            own = set(modules[layers[-1]].parameters(recurse=False))
            return tuple(name for name, p in named.items() if p in own)
    raise ModelError(
        "the shared network's output has no gradient for any of its trainable parameters: nothing "
        "to learn; look for detach() or no_grad() in its forward pass"
    )


def _inside(name: str, other: str) -> bool:
    """Whether a module is part of another, by their names; the root's name is empty."""
    return name != other and (not other or name.startswith(f"{other}."))


def _traced(network: nn.Module, x: Tensor) -> tuple[list[str], set[nn.Parameter]]:
    """Modules in the order in which they finish, and parameters that the output depends on."""
    order: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: order.append(name))
        for name, module in network.named_modules()
    ]
    trainable = list(trainable_parameters(network).values())
    was_training = network.training
    network.eval()
    try:
        with torch.enable_grad():
            output = network(x[:2])
        if not output.requires_grad:
            return order, set()
        gradients = torch.autograd.grad(output.sum(), trainable, allow_unused=True)
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return order, {p for p, g in zip(trainable, gradients, strict=True) if g is not None}
