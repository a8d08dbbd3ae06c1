"""Personalised federated multi-task learning with dynamic task weights.

>>> import fedgradnorm as fgn
"""

from fedgradnorm import models
from fedgradnorm.client import Client
from fedgradnorm.errors import (
    ConfigError,
    DataError,
    FedGradNormError,
    Interrupted,
    ModelError,
    RunFolderError,
    TrainingError,
)
from fedgradnorm.experiments.loading import load
from fedgradnorm.experiments.run import Run
from fedgradnorm.experiments.train import train
from fedgradnorm.tasks import Task, classification, regression
from fedgradnorm.version import __version__
from fedgradnorm.weighting import BySize, Equal, GradNorm, Needs, Signals, Static, Weighting

__all__ = [
    "BySize",
    "Client",
    "ConfigError",
    "DataError",
    "Equal",
    "FedGradNormError",
    "GradNorm",
    "Interrupted",
    "ModelError",
    "Needs",
    "Run",
    "RunFolderError",
    "Signals",
    "Static",
    "Task",
    "TrainingError",
    "Weighting",
    "__version__",
    "classification",
    "load",
    "models",
    "regression",
    "train",
]
