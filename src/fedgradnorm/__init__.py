"""Personalized federated multi-task learning with dynamic task weights.

>>> import fedgradnorm as fgn

Each name is imported when it is first used: a process that trains nothing, as the one that restarts
a client or the one that passes messages on, then starts without PyTorch.
"""

from typing import TYPE_CHECKING

from fedgradnorm._errors import (
    ConfigError,
    DataError,
    FedGradNormError,
    Interrupted,
    ModelError,
    RunFolderError,
    TrainingError,
)
from fedgradnorm._lazy import on_demand
from fedgradnorm._version import __version__

if TYPE_CHECKING:
    from fedgradnorm import data, experiments, models, tasks, weighting
    from fedgradnorm._balancer import Balancer
    from fedgradnorm._benefit.benefit import Benefit
    from fedgradnorm._client import Client
    from fedgradnorm._methods import Method, methods
    from fedgradnorm._privacy.terms import ClientPrivacy, Privacy
    from fedgradnorm._round.reports import Column
    from fedgradnorm._round.settings import (
        Checkpoints,
        Compute,
        EarlyStopping,
        Evaluation,
        History,
        KeepBest,
        Local,
        Personalization,
        Server,
        Sharing,
    )
    from fedgradnorm._runs.loading import load
    from fedgradnorm._runs.run import Run
    from fedgradnorm._training.benefit import benefit
    from fedgradnorm._training.callbacks import Callback, ShowProgress
    from fedgradnorm._training.train import resume, train
    from fedgradnorm.models._input_rows import sequences
    from fedgradnorm.tasks._making import binary, classification, multilabel, ordinal, regression
    from fedgradnorm.tasks._task import Task
    from fedgradnorm.weighting import Equal, GradNorm, Needs, Signals, Static, Weighting

__all__ = [
    "Balancer",
    "Benefit",
    "Callback",
    "Checkpoints",
    "Client",
    "ClientPrivacy",
    "Column",
    "Compute",
    "ConfigError",
    "DataError",
    "EarlyStopping",
    "Equal",
    "Evaluation",
    "FedGradNormError",
    "GradNorm",
    "History",
    "Interrupted",
    "KeepBest",
    "Local",
    "Method",
    "ModelError",
    "Needs",
    "Personalization",
    "Privacy",
    "Run",
    "RunFolderError",
    "Server",
    "Sharing",
    "ShowProgress",
    "Signals",
    "Static",
    "Task",
    "TrainingError",
    "Weighting",
    "__version__",
    "benefit",
    "binary",
    "classification",
    "data",
    "experiments",
    "load",
    "methods",
    "models",
    "multilabel",
    "ordinal",
    "regression",
    "resume",
    "sequences",
    "tasks",
    "train",
    "weighting",
]

_ROOMS = ("data", "experiments", "models", "tasks", "weighting")
_TASKS = ("binary", "classification", "multilabel", "ordinal", "regression")
_GROUPS = ("Compute", "Local", "Personalization", "Server", "Sharing")
_RECORDED = ("Checkpoints", "EarlyStopping", "Evaluation", "History", "KeepBest")
_WEIGHTINGS = ("Equal", "GradNorm", "Needs", "Signals", "Static", "Weighting")
__getattr__ = on_demand(
    __name__,
    {name: f"{__name__}.{name}" for name in _ROOMS}
    | {name: f"{__name__}.tasks._making.{name}" for name in _TASKS}
    | {name: f"{__name__}._round.settings.{name}" for name in (*_GROUPS, *_RECORDED)}
    | {name: f"{__name__}.weighting.{name}" for name in _WEIGHTINGS}
    | {
        "Balancer": f"{__name__}._balancer.Balancer",
        "Benefit": f"{__name__}._benefit.benefit.Benefit",
        "Callback": f"{__name__}._training.callbacks.Callback",
        "Client": f"{__name__}._client.Client",
        "Method": f"{__name__}._methods.Method",
        "Column": f"{__name__}._round.reports.Column",
        "Task": f"{__name__}.tasks._task.Task",
        "ShowProgress": f"{__name__}._training.callbacks.ShowProgress",
        "benefit": f"{__name__}._training.benefit.benefit",
        "methods": f"{__name__}._methods.methods",
        "resume": f"{__name__}._training.train.resume",
        "sequences": f"{__name__}.models._input_rows.sequences",
        "ClientPrivacy": f"{__name__}._privacy.terms.ClientPrivacy",
        "Privacy": f"{__name__}._privacy.terms.Privacy",
        "load": f"{__name__}._runs.loading.load",
        "Run": f"{__name__}._runs.run.Run",
        "train": f"{__name__}._training.train.train",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
