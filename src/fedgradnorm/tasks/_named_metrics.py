"""Metrics by name, which way each is better, and torchmetrics' functions for many of them.

Classes count the same in a mean over classes ("macro"). A class that a split has no rows of, or
nothing but, cannot be ranked and is left out of ``auroc`` and ``average_precision``; where none is
left they are those of a guess, 0.5 and 0. A correlation with something constant is 0.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._registry import Registry
from fedgradnorm.tasks._kind import KINDS, Kind
from fedgradnorm.tasks._measures import OURS, Metric
from fedgradnorm.tasks._targets import has_gaps, known, labelled, positions

if TYPE_CHECKING:
    from fedgradnorm._client import Scaler
    from fedgradnorm.tasks._task import Task


@dataclass(frozen=True)
class Answers:
    """The outputs and targets of a split.

    torchmetrics gets probabilities, never logits: it would guess what they are from their range.
    """

    kind: Kind
    outputs: int
    output: Tensor
    target: Tensor

    @property
    def probability(self) -> Tensor:
        return self.kind.probability(self.output)

    @property
    def answer(self) -> Tensor:
        return self.kind.answer(self.output)

    @property
    def truth(self) -> Tensor:
        return self.target.long()

    def by_class(self, name: str, given: Tensor, **options: Any) -> Tensor:
        """torchmetrics' function of this name, in its form for this kind of task."""
        family = self.kind.family
        size = {"multiclass": "num_classes", "multilabel": "num_labels"}.get(family)
        sized = {size: self.kind.names(self.outputs), **options} if size else {}
        return _call("classification", f"{family}_{name}", given, self.truth, **sized)


Measure = Callable[[Answers], Tensor]
MetricFunction = TypeVar("MetricFunction", bound=Metric)


def _macro(name: str) -> Measure:
    """A function of answers, averaged over classes."""
    return lambda split: split.by_class(name, split.answer, average="macro")


def _plain(name: str) -> Measure:
    """A function of answers that is one number; 0 where it is not defined."""
    return lambda split: split.by_class(name, split.answer).nan_to_num(0.0)


def _ranking(name: str, guess: float) -> Measure:
    """A function of probabilities, averaged over the classes that can be ranked."""

    def measure(split: Answers) -> Tensor:
        truth = split.truth
        if split.kind.family == "multiclass":
            ones = truth.bincount(minlength=split.kind.names(split.outputs))
        else:
            ones = truth.reshape(len(truth), -1).sum(dim=0)
        usable = (ones > 0) & (ones < len(truth))  # some rows have it, and some have not
        if not usable.any():
            return split.output.new_tensor(guess)
        return split.by_class(name, split.probability, average="none").reshape(-1)[usable].mean()

    return measure


def _balanced_accuracy(split: Answers) -> Tensor:
    """The mean over classes of the share of their rows that is right; of labels, their mean."""
    if split.kind.family == "multiclass":
        return _seen_recall(split.answer, split.truth, split.kind.names(split.outputs))
    rows = len(split.truth)
    pairs = zip(
        split.answer.reshape(rows, -1).T,
        split.truth.reshape(rows, -1).T,
        strict=True,
    )
    return torch.stack([_seen_recall(answer, truth, 2) for answer, truth in pairs]).mean()


def _seen_recall(answer: Tensor, truth: Tensor, classes: int) -> Tensor:
    """The mean recall of the classes that have rows."""
    options = {"num_classes": classes, "average": "none"}
    recall = _call("classification", "multiclass_recall", answer, truth, **options)
    return recall[truth.bincount(minlength=classes) > 0].mean()


def _calibration_error(split: Answers) -> Tensor:
    """The mean gap of confidence and accuracy, over 15 bins of confidence (Guo et al. 2017)."""
    if split.kind.family == "multiclass":
        return split.by_class("calibration_error", split.probability)
    flat = split.probability.flatten(), split.truth.flatten()
    return _call("classification", "binary_calibration_error", *flat)


def _of_numbers(name: str, **options: Any) -> Measure:
    """A function of numbers, averaged over outputs; 0 where it is not defined."""

    def measure(split: Answers) -> Tensor:
        one = split.outputs == 1
        pair = (part.squeeze(1) if one else part for part in (split.output, split.target))
        found = _call("regression", name, *pair, **options)
        return found.mean().nan_to_num(0.0)

    return measure


@dataclass(frozen=True)
class Named:
    """What is known of a metric: which way it is better, and its function for kinds of tasks.

    ``measure`` is a function of torchmetrics for kinds of these ``families``. ``function`` is one
    of outputs and targets, for the ``kinds`` of these names, or for all.
    """

    higher: bool
    families: tuple[str, ...] = ()
    measure: Measure | None = field(default=None, repr=False)
    function: Metric | None = None
    kinds: tuple[str, ...] = ()

    def fits(self, kind: Kind) -> bool:
        if self.function is not None:
            return not self.kinds or kind.name in self.kinds
        return kind.family in self.families


METRICS = Registry[Named]("metric")
"""Every metric by name; one without a function comes with a task or a data set."""

_ALL = ("multiclass", "binary", "multilabel")
_REAL = ("numbers",)

for _name, _entry in {
    "loss": Named(False),
    "accuracy": Named(True),
    "auc": Named(True),
    "mae": Named(False),
    "nme": Named(False),
    "r2": Named(True),
    "balanced_accuracy": Named(True, _ALL, _balanced_accuracy),
    "f1": Named(True, _ALL, _macro("f1_score")),
    "precision": Named(True, _ALL, _macro("precision")),
    "recall": Named(True, _ALL, _macro("recall")),
    "auroc": Named(True, _ALL, _ranking("auroc", 0.5)),
    "average_precision": Named(True, _ALL, _ranking("average_precision", 0.0)),
    "calibration_error": Named(False, _ALL, _calibration_error),
    "mcc": Named(True, _ALL, _plain("matthews_corrcoef")),
    "mse": Named(False, _REAL, _of_numbers("mean_squared_error")),
    "rmse": Named(False, _REAL, _of_numbers("mean_squared_error", squared=False)),
    "pearson": Named(True, _REAL, _of_numbers("pearson_corrcoef")),
    "spearman": Named(True, _REAL, _of_numbers("spearman_corrcoef")),
}.items():
    METRICS.register(_name, _entry, __name__)


def metric(
    name: str, *, higher: bool, kinds: Sequence[str] = ()
) -> Callable[[MetricFunction], MetricFunction]:
    """Give a metric a name, for ``metrics=["name"]`` and config files: a decorator.

    The function takes the outputs and targets of a split and returns one number. Tables and pages
    know by ``higher`` which way it is better.

    >>> with METRICS.restored():
    ...     @metric("bias", higher=False, kinds=["regression"])
    ...     def bias(output, target):
    ...         return (output - target).mean().abs()
    ...     higher_is_better("bias"), higher_is_better("accuracy")
    (False, True)

    Args:
        name: of its column in the history.
        higher: whether more is better.
        kinds: kinds of tasks that it is for; all by default.
    """
    for kind in kinds:
        KINDS.find(kind)

    def register(function: MetricFunction) -> MetricFunction:
        if not callable(function):
            raise ConfigError(f"metric {name!r} must be a function, not {function!r}")
        entry = Named(bool(higher), function=function, kinds=tuple(kinds))
        METRICS.register(name, entry, getattr(function, "__module__", "") or "__main__")
        return function

    return register


def higher_is_better(name: str) -> bool:
    """Whether more of a metric is better; of losses, and of metrics nobody registered, less is."""
    return name in METRICS and METRICS[name].higher


MAIN_METRICS = ("accuracy", "nme", "mae")
"""The metric shown for a task that named none: the first of these that it has."""


@dataclass(frozen=True)
class NamedMetric:
    """A metric of the table, for a task."""

    name: str
    kind: str
    outputs: int

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Its value on a split; not a number where outputs are none, as in a run that diverges."""
        measure = METRICS[self.name].measure
        assert measure is not None
        if not output.isfinite().all():
            return output.new_tensor(float("nan"))
        if has_gaps(target):
            return self._with_gaps(measure, output, target)
        return measure(Answers(KINDS[self.kind], self.outputs, output, target))

    def _with_gaps(self, measure: Measure, output: Tensor, target: Tensor) -> Tensor:
        """Where single labels are missing: the mean over outputs, each on the rows that have it.

        What is a mean over all numbers stays so.
        """
        there = known(target)
        kind = KINDS[self.kind]
        one = KINDS["binary"] if kind.family == "multilabel" else kind
        if self.name in ("mse", "rmse", "calibration_error"):
            return measure(Answers(one, 1, output[there][:, None], target[there][:, None]))
        found = [(output[rows, k], target[rows, k]) for k, rows in enumerate(there.T)]
        columns = [
            Answers(one, 1, o[:, None], y if one.name == "binary" else y[:, None])
            for o, y in found
            if len(y)
        ]
        return torch.stack([measure(column) for column in columns]).mean()


def by_name(names: Any, kind: Kind, outputs: int) -> Mapping[str, Any]:
    """The metrics of these names; a ConfigError names one that a ``kind`` of task has not."""
    usual = kind.metrics
    known = [*usual, *(name for name, one in METRICS.items() if one.fits(kind))]
    found: dict[str, Any] = {}
    for name in names:
        choose(name, known, f"metric of a {kind.name} task")
        if name in usual:
            found[name] = usual[name]
        elif METRICS[name].function is not None:
            found[name] = METRICS[name].function
        elif importlib.util.find_spec("torchmetrics") is None:
            raise ConfigError(
                f"metric {name!r} needs torchmetrics: pip install 'fedgradnorm[metrics]', or give "
                "a function of your own, metrics={'name': function}"
            )
        else:
            found[name] = NamedMetric(name, kind.name, outputs)
    return found


def _call(package: str, name: str, *given: Tensor, **options: Any) -> Tensor:
    """A function of torchmetrics. It warns of classes without rows, for which see above."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functions = importlib.import_module(f"torchmetrics.functional.{package}")
        parts = (part.contiguous() for part in given)  # some of them take views
        found: Tensor = getattr(functions, name)(*parts, **options)
    return found


def measured(
    task: Task, output: Tensor, target: Tensor, scaling: Scaler | None
) -> dict[str, float]:
    """Every metric of a split's labeled rows; ``output`` is [rows, outputs, *shape].

    Our own metrics are of single positions. One of others gets the rows as they are, with NaN for
    what is missing. Where targets were standardized, all of them see the raw units.
    """
    if scaling is not None and task.has_real_targets:
        output, target = scaling.restore_targets(output), scaling.restore_targets(target)
    flat = output, target
    if task.shape:
        # Outputs and targets of the positions that have labels, a row for each.
        outputs = positions(output)
        targets = target.reshape(-1) if task.form.counted else positions(target)
        if has_gaps(targets):
            there = labelled(targets)
            outputs, targets = outputs[there], targets[there]
        flat = outputs, targets.long() if task.form.counted else targets
    values: dict[str, float] = {}
    for name, metric in task.metrics.items():
        try:
            value = metric(*flat) if is_ours(metric) else metric(output, target)
        except Exception as error:  # code of others may raise anything
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"metric {name!r} fails: {reason}; correct the metric") from error
        values[name] = one_number(name, value)
    return values


def is_ours(metric: Metric) -> bool:
    return metric in OURS or isinstance(metric, NamedMetric)


def check_metrics(metrics: Any) -> Mapping[str, Metric]:
    """The table of metrics; a ConfigError unless it holds functions by name."""
    found = {} if metrics is None else metrics
    if not isinstance(found, Mapping) or not all(map(callable, found.values())):
        raise ConfigError(
            "metrics must be a list of names, such as ['f1'], or functions by name, such as "
            "{'bias': lambda output, target: (output - target).mean()}, "
            f"not {metrics!r}; accuracy (of classes), mae and r2 (of numbers) are always there"
        )
    for name in found:
        if not isinstance(name, str) or not name.strip() or set(name) & set(',"\r\n'):
            raise ConfigError(
                "a metric's name must be a text without commas, quotes or line breaks, "
                f"not {name!r}"
            )
    return found


def one_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"metric {name!r} returns {shown_kind(value)}; it must return one number"
        ) from error


def shown_kind(value: Any) -> str:
    """What a value is, for a message: a tensor's shape, or the type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"shape {tuple(value.shape)}" if value.ndim else "a single number"
