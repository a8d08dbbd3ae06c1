"""Where gradients are measured: the last layer of the shared network, or what the user names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedgradnorm._errors import ModelError, did_you_mean
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._flat import trainable_parameters
from fedgradnorm.models._input_rows import Inputs, call

NORM_LAYER = "norm layer"


def find_norm_layer(
    network: nn.Module, x: Inputs, norm_layer: str | Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the parameters whose gradient is measured.

    By default the last layer with a weight matrix that a forward pass of ``x`` reaches, weight and
    bias. ``norm_layer`` names other layers ("3", "encoder.last") or parameters
    ("encoder.last.weight").
    """
    if norm_layer is None:
        return _last_layer(network, x)
    return parameters_of(
        network, [norm_layer] if isinstance(norm_layer, str) else norm_layer, NORM_LAYER
    )


def parameters_of(network: nn.Module, parts: Sequence[str], what: str) -> tuple[str, ...]:
    """Names of the trainable parameters of some layers, or of the parameters that are named.

    ``what`` is what the parts are named for, as a ModelError says it.
    """
    shared = list(trainable_parameters(network))
    trainable = shared if what == NORM_LAYER else [*shared, *private_names(network)]
    found: list[str] = []
    for part in parts:
        names = [n for n in trainable if _within(n, part)]
        if not names:
            layers = list(dict.fromkeys(n.rpartition(".")[0] for n in trainable))
            hint = did_you_mean(part, layers + trainable, 0.6)
            if what == NORM_LAYER and any(
                _within(n, part) for n in dict(network.named_parameters())
            ):
                hint = ", but frozen or private: a norm layer is measured on what is shared"
            raise ModelError(
                f"{what} {part!r} is no trainable layer or parameter of the shared network{hint} "
                f"(layers: {', '.join(layers)})"
            )
        found += [n for n in names if n not in found]
    return tuple(found)


def _within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _last_layer(network: nn.Module, x: Inputs) -> tuple[str, ...]:
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
        # A module's own name is the beginning of those inside it; the root's is empty.
        starts = {name: f"{name}." if name else "" for name in ran}
        inner = {n: any(o != n and o.startswith(starts[n]) for o in ran) for n in ran}
        if layers := [name for name in ran if not inner[name]]:
            own = set(modules[layers[-1]].parameters(recurse=False))
            return tuple(name for name, p in named.items() if p in own)
    raise ModelError(
        "the shared network's output has no gradient for any of its trainable parameters: nothing "
        "to learn; look for detach() or no_grad() in its forward pass"
    )


def _traced(network: nn.Module, x: Inputs) -> tuple[list[str], set[nn.Parameter]]:
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
            output = call(network, x[:2])
        if not output.requires_grad:
            return order, set()
        gradients = torch.autograd.grad(output.sum(), trainable, allow_unused=True)
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return order, {p for p, g in zip(trainable, gradients, strict=True) if g is not None}
