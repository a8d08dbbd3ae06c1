"""The shared network as one flat vector, and the copy that an engine works on."""

from __future__ import annotations

import copy
from types import MethodType

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError, ModelError
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._fitting import check_sized


def trainable_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The shared parameters that training moves, by name; a ModelError if there are none."""
    named = dict(network.named_parameters())
    if not named:
        raise ModelError("the shared network has no trainable parameters: nothing to learn")
    if not any(p.requires_grad for p in named.values()):
        raise ModelError(
            f"all {len(named)} parameters of the shared network are frozen: nothing to learn; "
            "set requires_grad of those that are to be trained"
        )
    check_sized(network, "the shared network")
    private = set(private_names(network))
    return {name: p for name, p in named.items() if p.requires_grad and name not in private}


class FlatNetwork:
    """A private copy of a network whose trainable parameters are views of one flat vector.

    ``vector`` is what the server sends, with one slice per parameter, in ``slices``. Frozen and
    private parameters and buffers stay outside.
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
        own = dict(self.module.named_parameters())
        self.private = {name: own[name].detach().clone() for name in private_names(network)}
        self.use(self.vector)

    def use(self, vector: Tensor) -> None:
        """Read the parameters straight from ``vector`` from now on, without a copy."""
        self.vector = vector
        for name, parameter in self.module.named_parameters():
            if name in self.slices:
                parameter.data = vector[self.slices[name]].view_as(parameter)

    def buffers(self) -> dict[str, Tensor]:
        return {name: b.detach().clone() for name, b in self.module.named_buffers()}


def require_gpu(device: torch.device) -> None:
    if device.type == "cpu":
        raise ConfigError("precision = 'bf16' needs a GPU; use 'float32'")


def working_copy(network: nn.Module, device: torch.device, *, bf16: bool = False) -> FlatNetwork:
    """A flat copy to train with; on a CPU a stack of convolutions gets channels last in memory.

    With ``bf16``, which needs a GPU, its products are in bfloat16; parameters, gradients and
    outputs stay in float32.
    """
    flat = FlatNetwork(network, device)
    if bf16:
        require_gpu(device)
        if flat.vector.dtype != torch.float32:
            raise ModelError(
                f'precision = "bf16" is for networks in float32, this one is in '
                f"{str(flat.vector.dtype).removeprefix('torch.')}; convert it with .float()"
            )
        flat.module.forward = MethodType(_forward_in_bf16, flat.module)
    layers = list(network.modules())[1:] if type(network) is nn.Sequential else []
    ours = all(type(layer).__module__.startswith("torch.nn.modules") for layer in layers)
    # code of others may look at an image's memory (``view``), so it gets images as they are
    if device.type == "cpu" and layers and ours and type(layers[0]) is nn.Conv2d:
        flat.module.register_forward_pre_hook(_channels_last)
    return flat


def _forward_in_bf16(module: nn.Module, *inputs: Tensor, **named: Tensor) -> Tensor:
    """A network's forward pass with its products in bfloat16, and nothing around it.

    Cast weights are not kept: the next step has others.
    """
    kind = next(module.parameters()).device.type
    with torch.autocast(kind, torch.bfloat16, cache_enabled=False):
        output: Tensor = type(module).forward(module, *inputs, **named)
    return output.float()


def _channels_last(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same images with channels last in memory: on a CPU convolution and pooling like that."""
    if len(args) != 1 or args[0].dim() != 4:  # called by keyword, or with no images
        return args
    (x,) = args
    if torch._C._functorch.is_batchedtensor(x):  # vmap has no order of channels
        return args
    if x.shape[1] == 1:  # one channel is last in any order; only the strides must say so
        return (x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2),)
    return (x.contiguous(memory_format=torch.channels_last),)
