"""Inner products of the clients' gradients and weighted sums of them, without the gradients.

Where all parameters are in linear layers, with a layer's inputs A and the loss signal D at its
outputs, client k's gradient of the layer is D_k^T A_k. So

    <D_i^T A_i, D_j^T A_j> = sum over rows a of i and b of j of (A A^T)_ab (D D^T)_ab

which is two products of the batch with itself, and sum_k c_k D_k^T A_k is one product a layer.
N gradients as large as the network are never in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgradnorm._engines.passes.autograd import AutogradPass
from fedgradnorm._engines.passes.gauge_tap import GaugeTap
from fedgradnorm._engines.passes.shared_pass import scaled
from fedgradnorm.models._flat import FlatNetwork


class ProductTap(GaugeTap):
    """Remembers inputs and outputs of all layers that have parameters."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, [n for n, p in network.named_parameters() if p.requires_grad])

    def problem(self) -> str | None:
        """Why the products cannot be taken from the last forward pass, if they cannot."""
        linear = all(type(module) is nn.Linear for module in self.modules.values())
        if not linear or any(inputs.ndim != 2 for _, inputs, _ in self.seen):
            return "not all of its layers are linear"
        return super().problem()

    def with_inputs(self, signals: Sequence[Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Each layer's inputs and the loss signal at its outputs."""
        found = zip(self.seen, signals, strict=True)
        return {
            owner: (self._in_own_dtype(owner, inputs), self._in_own_dtype(owner, d))
            for (owner, inputs, _), d in found
        }


class ProductPass(AutogradPass):
    """A network of linear layers, with each layer's inputs and signals instead of N gradients."""

    def __init__(self, network: FlatNetwork, gauge: Sequence[str]) -> None:
        super().__init__(network, gauge)
        self._products = ProductTap(network.module)
        self._layers: dict[str, tuple[Tensor, Tensor]] = {}

    def measure(self, signal: Tensor, parts: Sequence[tuple[slice, int]]) -> list[Tensor]:
        """As any network; the signals at all layers are taken too."""
        squared = super().measure(signal, parts)
        self._layers = self._products.with_inputs(self._taken(self._products, signal))
        self._products.seen.clear()
        return squared

    def backward(self, factors: Tensor, owner: Tensor) -> Tensor:
        """One product a layer."""
        summed: dict[str, Tensor] = {}
        for layer, (a, d) in self._layers.items():
            weighted = scaled(d, factors, owner)
            for name in self._products.layers[layer]:
                found = weighted.T @ a if name == "weight" else weighted.sum(dim=0)
                summed[f"{layer}.{name}" if layer else name] = found
        return self.network.flatten([summed[name] for name in self.network.slices])

    def gram(self, owner: Tensor, clients: int) -> Tensor:
        """update_i . update_j for all pairs of clients; ``owner`` is the client of each row."""
        member = (owner == torch.arange(clients, device=owner.device)[:, None]).double()
        total = torch.zeros(clients, clients, dtype=torch.float64, device=owner.device)
        for layer, (a, d) in self._layers.items():
            wanted = self._products.layers[layer]
            alike = a @ a.T if "weight" in wanted else d.new_zeros(len(d), len(d))
            alike = alike + float("bias" in wanted)
            total += member @ (alike * (d @ d.T)).double() @ member.T
        return total
