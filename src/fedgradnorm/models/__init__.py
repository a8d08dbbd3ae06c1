"""Networks to share: the paper's two, and the linear head that clients have by default."""

from fedgradnorm.models._networks import linear_head, network1, network2

__all__ = ["linear_head", "network1", "network2"]
