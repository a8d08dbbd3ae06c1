"""What a client learns: a loss for each row, and metrics for a split."""

from fedgradnorm.tasks._kind import Kind
from fedgradnorm.tasks._making import of_kind
from fedgradnorm.tasks._named_metrics import metric

__all__ = ["Kind", "metric", "of_kind"]
