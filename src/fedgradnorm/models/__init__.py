"""Networks to share: the paper's two."""

from fedgradnorm.models._networks import network1, network2

__all__ = ["network1", "network2"]
