"""What a client learns: a loss for each row, and metrics for a split."""

from fedgradnorm.tasks._kind import Kind, register
from fedgradnorm.tasks._making import (
    binary,
    classification,
    multilabel,
    of_kind,
    ordinal,
    regression,
)
from fedgradnorm.tasks._named_metrics import metric
from fedgradnorm.tasks._task import Task

__all__ = [
    "Kind",
    "Task",
    "binary",
    "classification",
    "metric",
    "multilabel",
    "of_kind",
    "ordinal",
    "register",
    "regression",
]
