"""What a client learns: a loss for each row, and metrics for a split."""

from fedgradnorm.tasks._measures import (
    accuracy,
    cross_entropy,
    mean_absolute_error,
    r_squared,
    squared_error,
)
from fedgradnorm.tasks._task import Task, classification, regression

__all__ = [
    "Task",
    "accuracy",
    "classification",
    "cross_entropy",
    "mean_absolute_error",
    "r_squared",
    "regression",
    "squared_error",
]
