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
from fedgradnorm.tasks._measures import (
    accuracy,
    binary_cross_entropy,
    cross_entropy,
    mean_absolute_error,
    r_squared,
    squared_error,
)
from fedgradnorm.tasks._named_metrics import metric
from fedgradnorm.tasks._task import Task

__all__ = [
    "Kind",
    "Task",
    "accuracy",
    "binary",
    "binary_cross_entropy",
    "classification",
    "cross_entropy",
    "mean_absolute_error",
    "metric",
    "multilabel",
    "of_kind",
    "ordinal",
    "r_squared",
    "register",
    "regression",
    "squared_error",
]
