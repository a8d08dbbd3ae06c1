"""What the clients of one pass reported."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedgradnorm._engines.passes.inner_products import ProductPass
from fedgradnorm._engines.passes.shared_pass import Pass
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.reports import Reports


@dataclass(frozen=True)
class JointReports(Reports):
    """Reports that hold one forward pass instead of N gradients."""

    run: Pass
    owner: Tensor  # the client of each row

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i, by one backward pass."""
        return self.run.backward(coefficients, self.owner)

    def gradients(self) -> Tensor:
        """Refused: this engine has no single client's update."""
        raise ConfigError("engine 'joint' forms no single gradients; use engine='loop'")

    def gram(self) -> Tensor:
        """update_i . update_j for all pairs of clients, where the engine was made for it."""
        if not isinstance(self.run, ProductPass):
            return super().gram()
        return self.run.gram(self.owner, len(self.active))
