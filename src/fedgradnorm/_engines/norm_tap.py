"""Each client's gradient length on the measured layer, without each client's gradient.

A layer's gradient is a sum over the examples of the batch. Call the layer's inputs A and the
gradient at its outputs D. Client k's gradient of a linear layer is D_k^T A_k. Its squared length is
sum((A_k A_k^T) * (D_k D_k^T)): two small products instead of a matrix as large as the layer.
Other layers go through vmap over the client axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from fedgradnorm.models._flat import FlatNetwork

Layers = dict[str, tuple[Tensor, Tensor]]
"""Inputs and output gradients of layers, by name."""


class NormTap:
    """Remembers inputs and outputs of the measured layers in a forward pass."""

    def __init__(self, network: nn.Module, measured: Sequence[str]) -> None:
        self.layers: dict[str, list[str]] = {}
        for name in measured:
            owner, _, parameter = name.rpartition(".")
            self.layers.setdefault(owner, []).append(parameter)
        self.modules = {owner: network.get_submodule(owner) for owner in self.layers}
        own = {network.get_parameter(name) for name in measured}
        users = [p for m in network.modules() for p in m.parameters(recurse=False) if p in own]
        self.tied = len(users) > len(own)
        self.seen: list[tuple[str, Tensor, Tensor]] = []
        self.on = True  # other passes than the joint one are not remembered
        for owner, module in self.modules.items():
            module.register_forward_hook(self._hook(owner))

    def _hook(self, owner: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def remember(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if self.on and torch.is_grad_enabled():
                first: Any = inputs[0] if inputs else None  # called by keyword: not to be measured
                self.seen.append((owner, first, output))

        return remember

    def problem(self) -> str | None:
        """Why the layers seen in the last forward pass cannot be measured, if they cannot."""
        if self.tied:
            return "a parameter of the measured layer belongs to several layers"
        owners = [owner for owner, _, _ in self.seen]
        if sorted(owners) != sorted(self.layers):
            return "a measured layer is not called exactly once in a forward pass"
        if not all(isinstance(part, Tensor) for seen in self.seen for part in seen[1:]):
            return "a measured layer does not map one tensor to one tensor"
        if any(output._version for _, _, output in self.seen):  # then the gradient is another's
            return "the output of a measured layer is changed in place"
        return None

    def gradients(self, output: Tensor, gradient: Tensor) -> list[Tensor]:
        """The gradients at the outputs of the measured layers, given that at the network's."""
        outputs = [out for _, _, out in self.seen]
        return list(torch.autograd.grad(output, outputs, gradient, retain_graph=True))

    def squared(self, gradients: Sequence[Tensor], rows: slice, batch: int) -> Tensor:
        """|gradient on the measured layers|^2 of each client in ``rows``, ``batch`` each."""
        total: Tensor | None = None
        seen = list(self.seen)  # measuring may call a layer again, and its hook with it
        for (owner, inputs, _), gradient in zip(seen, gradients, strict=True):
            a = self._in_own_dtype(owner, inputs)[rows].unflatten(0, (-1, batch))
            d = self._in_own_dtype(owner, gradient)[rows].unflatten(0, (-1, batch))
            part = self._layer(owner, a, d)
            total = part if total is None else total + part
        self.seen = seen
        assert total is not None
        return total

    def _in_own_dtype(self, owner: str, values: Tensor) -> Tensor:
        """What a layer saw, in the precision of its parameters; its products may have less."""
        if not values.is_floating_point():  # indices of an embedding
            return values.detach()
        own: Tensor = getattr(self.modules[owner], self.layers[owner][0])
        return values.detach().to(own.dtype)

    def _layer(self, owner: str, a: Tensor, d: Tensor) -> Tensor:
        module, wanted = self.modules[owner], self.layers[owner]
        if type(module) is nn.Linear and a.ndim == 3:
            return linear_squared(a, d, wanted)
        parameters = {name: getattr(module, name).detach() for name in wanted}

        def one(inputs: Tensor, gradient: Tensor) -> Tensor:
            pull = vjp(lambda p: functional_call(module, p, (inputs,)), parameters)[1]
            gradients = pull(gradient)[0]
            return torch.stack([g.square().sum() for g in gradients.values()]).sum()

        squared: Tensor = vmap(one)(a, d)
        return squared


def linear_squared(a: Tensor, d: Tensor, wanted: Sequence[str]) -> Tensor:
    """Squared length of each client's gradient of a linear layer: inputs, output gradients.

    Both are [client, example, ...]. The bias is a weight whose input is always 1, so together with
    the weight it adds 1 to each A_k A_k^T.
    """
    if wanted == ["bias"]:
        return d.sum(dim=1).square().sum(dim=1)
    bias = "bias" in wanted
    if a.shape[1] ** 2 <= a.shape[2] * d.shape[2]:
        inputs = torch.bmm(a, a.transpose(1, 2))
        if bias:
            inputs += 1
        pairs = inputs.mul_(torch.bmm(d, d.transpose(1, 2)))
        return pairs.sum(dim=(1, 2)).clamp_min_(0)
    total = torch.bmm(d.transpose(1, 2), a).square_().sum(dim=(1, 2))
    return total + d.sum(dim=1).square_().sum(dim=1) if bias else total


class ProductTap(NormTap):
    """Remembers all layers with parameters: inner products and sums of gradients, without them.

    Where all parameters are in linear layers, client k's gradient of a layer is D_k^T A_k, so

        <D_i^T A_i, D_j^T A_j> = sum over examples a of i and b of j of (A A^T)_ab (D D^T)_ab,

    which is two products of the batch with itself; sum_k c_k D_k^T A_k is one product per layer.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, [n for n, p in network.named_parameters() if p.requires_grad])

    def problem(self) -> str | None:
        """Why the products cannot be taken from the last forward pass, if they cannot."""
        linear = all(type(module) is nn.Linear for module in self.modules.values())
        if not linear or any(inputs.ndim != 2 for _, inputs, _ in self.seen):
            return "not all of its layers are linear"
        return super().problem()

    def with_inputs(self, gradients: Sequence[Tensor]) -> Layers:
        """Each layer's inputs, and the gradient at its outputs."""
        found = zip(self.seen, gradients, strict=True)
        return {
            owner: (self._in_own_dtype(owner, inputs), self._in_own_dtype(owner, d))
            for (owner, inputs, _), d in found
        }

    def summed(self, network: FlatNetwork, layers: Layers, factors: Tensor) -> Tensor:
        """The gradient of a weighted sum of losses; ``factors`` are those of each example."""
        found: dict[str, Tensor] = {}
        for layer, (a, d) in layers.items():
            weighted = d * factors.to(d.dtype)[:, None]
            for name in self.layers[layer]:
                part = weighted.T @ a if name == "weight" else weighted.sum(dim=0)
                found[f"{layer}.{name}" if layer else name] = part
        return network.flatten([found[name] for name in network.slices])

    def gram(self, layers: Layers, owner: Tensor, clients: int) -> Tensor:
        """Products of all pairs of clients' gradients; ``owner`` is the client of each example."""
        member = (owner == torch.arange(clients, device=owner.device)[:, None]).double()
        total = torch.zeros(clients, clients, dtype=torch.float64, device=owner.device)
        for layer, (a, d) in layers.items():
            wanted = self.layers[layer]
            alike = a @ a.T if "weight" in wanted else d.new_zeros(len(d), len(d))
            alike = alike + float("bias" in wanted)
            total += member @ (alike * (d @ d.T)).double() @ member.T
        return total
