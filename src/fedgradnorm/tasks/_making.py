"""The tasks that users make, one function for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._kind import KINDS, Kind
from fedgradnorm.tasks._labels import LabelMap
from fedgradnorm.tasks._measures import LossFunction, Metric, WeightedLoss, checked_weights
from fedgradnorm.tasks._named_metrics import MAIN_METRICS, by_name, check_metrics
from fedgradnorm.tasks._targets import Shape, checked_shape
from fedgradnorm.tasks._task import Task

Metrics = Mapping[str, Metric] | Sequence[str]
"""Functions by name, or names of metrics that are known."""
Weights = Literal["balanced"] | Sequence[float]


def classification(
    classes: int | None = None,
    *,
    labels: Sequence[str] | None = None,
    loss: LossFunction | None = None,
    class_weights: Weights | None = None,
    metrics: Metrics | None = None,
    loss_scale: float = 1.0,
    name: str | None = None,
    shape: Shape | int = (),
) -> Task:
    """One of ``classes`` labels per example, 0 .. classes - 1; cross-entropy by default.

    Pass ``labels`` to name the classes instead of counting them. A client's targets may then be
    these names. Without a list, text labels become class numbers in sorted order.

    With ``class_weights``, an example's loss is w[y] times its cross-entropy. ``"balanced"`` makes
    all classes count the same: w_c = n / (C n_c), if n_c of the client's n training examples have
    class c. A list gives one number v_c for each class, scaled to w_c = v_c n / sum_j v[y_j]: the
    mean weight of a training example is 1, as in torch's weighted mean.

    ``metrics`` in addition to accuracy: functions by name, or a list of names such as "f1". Tables
    show the first one.

    With a ``shape``, such as (16, 16) for a mask, every position has a class. The head returns
    ``[examples, classes, *shape]`` or ``[examples, *shape, classes]``, and an example's loss is the
    mean over positions.

    >>> classification(3).outputs
    3
    >>> classification(labels=["no", "yes"]).outputs
    2
    """
    names = None if labels is None else LabelMap.listed(labels, "labels").names
    if names is not None:
        if classes is not None and classes != len(names):
            raise ConfigError(f"{len(names)} labels for {classes!r} classes; leave classes out")
        classes = len(names)
    if classes is None:
        raise ConfigError("a classification needs a number of classes or a list of labels")
    if class_weights is not None:
        _only_one(loss, "class_weights")
        loss = WeightedLoss(checked_weights("class_weights", class_weights, classes), classes)
    task = _task("classification", classes, loss, metrics, loss_scale, name, shape)
    return replace(task, labels=names)


def binary(
    *,
    labels: Sequence[str] | None = None,
    loss: LossFunction | None = None,
    pos_weight: Literal["balanced"] | float | None = None,
    metrics: Metrics | None = None,
    loss_scale: float = 1.0,
    name: str | None = None,
    shape: Shape | int = (),
) -> Task:
    """0 or 1 per example, from one logit; binary cross-entropy by default.

    ``labels`` are the names of 0 and 1, in this order; a client's targets may then be these names.

    With ``pos_weight`` p, an example with a 1 counts p times as much as one with a 0;
    ``"balanced"`` is p = zeros / ones. Both weights are scaled so that the mean weight of a
    training example is 1. ``shape`` is as in :func:`classification`.

    >>> binary().outputs
    1
    """
    names = None if labels is None else LabelMap.listed(labels, "labels").names
    if names is not None and len(names) != 2:
        raise ConfigError(f"a binary task has two labels, not {len(names)}; use classification")
    if pos_weight is not None:
        _only_one(loss, "pos_weight")
        loss = WeightedLoss(checked_weights("pos_weight", pos_weight, 1), 1, binary=True)
    return replace(_task("binary", 1, loss, metrics, loss_scale, name, shape), labels=names)


def multilabel(
    labels: int,
    *,
    loss: LossFunction | None = None,
    pos_weight: Weights | None = None,
    metrics: Metrics | None = None,
    loss_scale: float = 1.0,
    name: str | None = None,
    shape: Shape | int = (),
) -> Task:
    """``labels`` zeros and ones per example; mean binary cross-entropy over labels by default.

    ``pos_weight`` is as in :func:`binary`, with a number for each label; ``shape`` is as in
    :func:`classification`.

    >>> sorted(multilabel(4).metrics)
    ['accuracy']
    """
    if pos_weight is not None:
        _only_one(loss, "pos_weight")
        weights = checked_weights("pos_weight", pos_weight, labels)
        loss = WeightedLoss(weights, labels, binary=True)
    return _task("multilabel", labels, loss, metrics, loss_scale, name, shape)


def ordinal(
    classes: int,
    *,
    loss: LossFunction | None = None,
    metrics: Metrics | None = None,
    loss_scale: float = 1.0,
    name: str | None = None,
    shape: Shape | int = (),
) -> Task:
    """One of ``classes`` ordered labels, 0 .. classes - 1, such as stages or stars.

    The head has classes - 1 outputs o_k for the probabilities that an example is above each class
    but the last: logit P(y > 0) = o_0, logit P(y > k) = logit P(y > k - 1) - softplus(o_k). The
    loss is the mean binary cross-entropy of these (Cao, Mirjalili, Raschka 2020, CORAL), so the
    farther a prediction is from the true class, the more it costs. ``mae`` is this distance.

    >>> ordinal(5).outputs, ordinal(5).classes
    (4, 5)
    """
    whole = isinstance(classes, int) and not isinstance(classes, bool)
    if not whole or classes < 2:
        way = "" if whole else "; give a whole number"
        raise ConfigError(f"an ordinal task needs at least 2 classes, not {classes!r}{way}")
    return _task("ordinal", classes - 1, loss, metrics, loss_scale, name, shape)


def of_kind(
    kind: type[Kind] | str,
    outputs: int,
    *,
    metrics: Metrics | None = None,
    loss_scale: float = 1.0,
    name: str | None = None,
    shape: Shape | int = (),
) -> Task:
    """A task of a custom kind: a class derived from :class:`Kind`, or its name."""
    if isinstance(kind, type) and issubclass(kind, Kind) and kind.name:
        if type(KINDS.get(kind.name)) is not kind:
            raise ConfigError(
                f"the name {kind.name!r} of {kind.__name__} stands for another class; give "
                f"{kind.__name__} a name of its own"
            )
        kind = kind.name
    if not isinstance(kind, str):
        raise ConfigError(
            "kind must be a class derived from fgn.tasks.Kind with a name and a loss, or its name, "
            f"not {shown(kind)}"
        )
    return _task(kind, outputs, None, metrics, loss_scale, name, shape)


def regression(
    outputs: int = 1,
    *,
    loss: LossFunction | None = None,
    metrics: Metrics | None = None,
    loss_scale: float = 1.0,
    name: str | None = None,
    shape: Shape | int = (),
) -> Task:
    """``outputs`` real numbers per example; mean squared error by default.

    With a ``shape``, every position has that many: see :func:`classification`.

    >>> sorted(regression(10).metrics)
    ['mae', 'r2']
    """
    return _task("regression", outputs, loss, metrics, loss_scale, name, shape)


def _task(
    kind: str,
    outputs: int,
    loss: LossFunction | None,
    metrics: Any,
    loss_scale: float,
    name: str | None,
    shape: Shape | int,
) -> Task:
    usual, first = KINDS.find(kind), None
    if isinstance(metrics, (list, tuple)) and all(isinstance(one, str) for one in metrics):
        first = next(iter(metrics), None)
        metrics = by_name(metrics, usual, outputs)
    measured = {**usual.metrics, **check_metrics(metrics)}
    if not measured.keys() & set(MAIN_METRICS):  # a custom kind: its first metric is the score
        first = first or next(iter(measured), None)
    own = usual.loss if loss is None else loss
    form = checked_shape(shape)
    return Task(kind, outputs, own, measured, loss_scale, name, form, judged_by=first)


def _only_one(loss: LossFunction | None, what: str) -> None:
    if loss is not None:
        raise ConfigError(f"{what} and a custom loss are both given; weight inside the loss")
