"""Inner products of the clients' gradients and weighted sums of them, without the gradients.

Where all parameters are in linear layers, with a layer's inputs A and the loss signal D at its
outputs, client k's gradient of the layer is D_k^T A_k. So

    <D_i^T A_i, D_j^T A_j> = sum over rows a of i and b of j of (A A^T)_ab (D D^T)_ab

which is two products of the batch with itself, and sum_k c_k D_k^T A_k is one product a layer.
N gradients as large as the network are never in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedgradnorm.engines.gauge import GaugeTap
from fedgradnorm.errors import ConfigError
from fedgradnorm.models import FlatNetwork
from fedgradnorm.reports import Reports


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

    def taken(self, output: Tensor, signal: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Each layer's inputs and the loss signal at its outputs."""
        found = zip(self.seen, self.signals(output, signal), strict=True)
        return {owner: (inputs.detach(), d) for (owner, inputs, _), d in found}


@dataclass(frozen=True)
class ProductReports(Reports):
    """Reports that hold each layer's inputs and signals instead of N gradients."""

    network: FlatNetwork
    layers: Mapping[str, tuple[Tensor, Tensor]]
    wanted: Mapping[str, Sequence[str]]  # the parameters of each layer
    owner: Tensor  # the client of each row

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i, one product a layer."""
        summed: dict[str, Tensor] = {}
        for layer, (a, d) in self.layers.items():
            weighted = d * coefficients.to(d.dtype)[self.owner][:, None]
            for name in self.wanted[layer]:
                found = weighted.T @ a if name == "weight" else weighted.sum(dim=0)
                summed[f"{layer}.{name}" if layer else name] = found
        trainable = [n for n, p in self.network.module.named_parameters() if p.requires_grad]
        return self.network.flatten([summed[name] for name in trainable])

    def gram(self) -> Tensor:
        """update_i . update_j for all pairs of clients."""
        member = one_hot(self.owner, len(self.active)).T.double()
        total = torch.zeros(len(member), len(member), dtype=torch.float64, device=member.device)
        for layer, (a, d) in self.layers.items():
            alike = a @ a.T if "weight" in self.wanted[layer] else d.new_zeros(len(d), len(d))
            alike = alike + float("bias" in self.wanted[layer])
            total += member @ (alike * (d @ d.T)).double() @ member.T
        return total

    def gradients(self) -> Tensor:
        """Refused: this engine has no single client's update."""
        raise ConfigError("engine 'joint' forms no single gradients; use engine='loop'")
