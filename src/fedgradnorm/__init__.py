"""Personalised federated multi-task learning with dynamic task weights.

>>> import fedgradnorm as fgn
"""

from fedgradnorm import data, experiments, models, tasks, weighting
from fedgradnorm._benefit.benefit import Benefit
from fedgradnorm._client import Client
from fedgradnorm._errors import (
    ConfigError,
    DataError,
    FedGradNormError,
    Interrupted,
    ModelError,
    RunFolderError,
    TrainingError,
)
from fedgradnorm._moved import keep_old_paths
from fedgradnorm._runs.loading import load
from fedgradnorm._runs.run import Run
from fedgradnorm._training.alone.worth import worth
from fedgradnorm._training.train import train
from fedgradnorm._version import __version__
from fedgradnorm.tasks import Task, classification, regression
from fedgradnorm.weighting import BySize, Equal, GradNorm, Needs, Signals, Static, Weighting

__all__ = [
    "Benefit",
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
    "data",
    "experiments",
    "load",
    "models",
    "regression",
    "tasks",
    "train",
    "weighting",
    "worth",
]

keep_old_paths()
