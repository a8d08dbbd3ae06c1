"""What a client learns, before its files are read."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedgradnorm._checks import finite, shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._files.tables import FileRows, coded_labels, number_of
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._labels import LabelMap
from fedgradnorm.tasks._making import (
    binary,
    classification,
    multilabel,
    of_kind,
    ordinal,
    regression,
)
from fedgradnorm.tasks._measures import Metric
from fedgradnorm.tasks._targets import checked_shape
from fedgradnorm.tasks._task import Task


@dataclass(frozen=True)
class Target:
    """What a client learns: the columns to predict, and the kind of task.

    Labels may be text. The distinct training labels, sorted, become classes 0, 1, ..., unless you
    list them in ``labels``. Empty cells, NA, NULL and the like are missing labels.

    >>> Target("state", "binary", positive="worn").columns
    ('state',)

    Args:
        targets: the target column or columns.
        task: "classification", "binary", "multilabel", "ordinal", "regression", or a registered
            kind.
        classes: the number of classes, 2 or more, if labels are already 0 .. classes - 1.
        labels: the labels of the classes, in order.
        positive: for a binary task, the label that is 1.
        above: for a binary task with numbers, the limit above which they are 1.
        class_weights: for classification, "balanced" or a number for each class.
        pos_weight: for a binary or multilabel task, "balanced" or the weight of a 1.
        metrics: additional metrics, by name.
        task_name: the name of the task; clients with the same one share a task.
        shape: the shape of a target with a label or number at each position (.npz archives).
        y_key: with several tasks in an archive, the array with this task's targets.
    """

    targets: str | Sequence[str] | None = None
    task: str = ""
    classes: int | None = None
    labels: Sequence[str] | None = None
    positive: str | int | None = None
    above: float | None = None
    class_weights: Literal["balanced"] | Sequence[float] | None = None
    pos_weight: Literal["balanced"] | float | Sequence[float] | None = None
    metrics: Sequence[str] | Mapping[str, Metric] | None = None
    task_name: str | None = None
    shape: int | Sequence[int] | None = None
    y_key: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The target columns."""
        given = self.targets or ()
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def form(self) -> tuple[int, ...]:
        """The shape of a row's target where it has one, checked."""
        return checked_shape(() if self.shape is None else self.shape)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the task that functions of ``fgn.tasks`` have as well."""
        return {k: getattr(self, k) for k in ("class_weights", "pos_weight", "metrics")}

    def check(self) -> None:
        """A ConfigError for options of another kind of task, or two that say the same."""
        for key in dict.fromkeys(option for one in KINDS.values() for option in one.options):
            given = getattr(self, key, None)
            if given is not None and key not in KINDS[self.task].options:
                kinds = " or ".join(name for name, one in KINDS.items() if key in one.options)
                raise ConfigError(f"{key} is for a {kinds}; leave it out")
        for one, other in (("labels", "classes"), ("labels", "positive"), ("above", "positive")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ConfigError(f"{one} and {other} are both given; leave {other} out")
        if self.above is not None:
            finite("above", self.above)
        self.label_map()

    @property
    def counted(self) -> bool:
        """Whether a row has one label."""
        return bool(self.task) and KINDS[self.task].counted

    @property
    def reads_texts(self) -> bool:
        """Whether the target column holds labels, not numbers."""
        return self.counted and self.above is None

    @property
    def class_count(self) -> int | None:
        """How many classes there must be, where that is said."""
        return 2 if self.task == "binary" else self.classes

    def is_public(self, names: Sequence[str]) -> bool:
        """Whether these classes were given, and not read from the training data."""
        numbers = self.class_count is not None and list(names) == [*map(str, range(len(names)))]
        return self.labels is not None or self.above is not None or numbers

    def label_map(self) -> LabelMap | None:
        """The labels that are listed; a ConfigError for a list that cannot be."""
        if self.labels is None:
            return None
        listed = LabelMap.listed(self.labels, "labels")
        if self.task == "binary" and len(listed.names) != 2:
            raise ConfigError(
                "labels of a binary task are two, that of 0 and that of 1, not "
                f"{len(listed.names)}; use task='classification'"
            )
        return listed

    def make(self, outputs: int) -> Task:
        """The task, with so many classes, labels or numbers."""
        given = {key: value for key, value in self.options.items() if value is not None}
        given |= {"shape": self.form} if self.form else {}
        if self.task == "binary":
            return binary(**given, name=self.task_name)
        make = _MAKERS.get(self.task) or partial(of_kind, self.task)
        return make(outputs, **given, name=self.task_name)

    def outputs_in(self, row: Sequence[int]) -> int:
        """How many numbers each place of a target has whose rows have this shape."""
        size = tuple(row)
        form = self.form
        if not form:
            return size[-1]
        if size == form:
            return 1
        last, first = size[:-1] == form, size[1:] == form
        if not (last or first):
            raise DataError(f"targets of shape {size} a row do not fit shape = {list(form)}")
        return size[-1] if last and (len(form) == 1 or not first) else size[0]


_MAKERS: dict[str, Callable[..., Task]] = {
    "classification": classification,
    "multilabel": multilabel,
    "ordinal": ordinal,
    "regression": regression,
}


log = logging.getLogger(__name__)

MOST_FRACTIONS = 20
"""Labels such as 2.5 that a client may have unless they are listed: more are measurements."""

SHOWN = 10  # labels that a line of the log names


def label_map(splits: Mapping[str, FileRows], key: str, plan: Target) -> LabelMap:
    """The classes: those listed, or the training labels, and after them those of other splits.

    Under ``on_bad="drop"`` a label without training rows is a class too. Its rows could be read,
    and a score that left them out would be too good.
    """
    listed, train = plan.label_map(), splits["train"]
    if plan.above is not None:
        return listed or LabelMap(("no", "yes"), False)
    known = listed or _learned(train, key, plan)
    for rows in splits.values():
        labels = _labels(rows, key)
        codes = known.codes(labels)
        unseen = [label for label, code in zip(labels, codes, strict=True) if code is None]
        fixed = listed is not None or plan.class_count is not None
        if unseen and (fixed or rows.places.bad.on_bad == "error"):
            raise _unseen(rows, key, plan, known, unseen[0])
        known = known.extended(unseen)
    return known


def _labels(rows: FileRows, key: str) -> list[str]:
    """The distinct labels of the usable rows."""
    return list(coded_labels(rows.y[key][rows.good()])[1])


def _learned(train: FileRows, key: str, plan: Target) -> LabelMap:
    labels, source = _labels(train, key), train.places.bad.source
    if not labels:
        raise DataError(f"{source}: no row has a label; check the column of targets")
    values = {text: number_of(text) for text in set(labels)}
    fractions = [text for text, v in values.items() if not (math.isnan(v) or v.is_integer())]
    if plan.class_count is None and len(fractions) > MOST_FRACTIONS:
        raise DataError(
            f"{source}: {len(fractions)} different numbers such as {max(fractions)} are no "
            "classes; use task='regression', or list the classes as labels = [...]"
        )
    known = LabelMap.fit(labels, plan.class_count, source, plan.task)
    return known if plan.positive is None else known.ending_with(str(plan.positive), source)


def _unseen(rows: FileRows, key: str, plan: Target, known: LabelMap, text: str) -> DataError:
    """The error for a label that the training data does not have."""
    (codes, texts), good = coded_labels(rows.y[key]), rows.good()
    found = (codes == texts.index(text)).reshape(len(codes), -1).any(axis=1)
    where = f"{rows.places.where(int(good[found[good].argmax()]))}: label {shown(text)}"
    if plan.labels is not None:
        some = ", ".join(map(repr, known.names[:SHOWN]))
        return DataError(f"{where} is none of labels = [{some}]; correct it, or add it to the list")
    way_out = "set on_bad='drop' to keep such rows, which then count as wrong"
    if plan.task == "binary":
        way_out = "use task='classification'"
    elif plan.classes is not None:
        way_out = f"leave classes = {plan.classes} out"
    return DataError(
        f"{where} does not occur in the training data; correct it, list all labels as labels = "
        f"[...], or {way_out}"
    )


def class_numbers(
    rows: FileRows, key: str, index: NDArray[np.int64], known: LabelMap, plan: Target
) -> NDArray[Any]:
    """The class of each row at ``index``, or at each place of it; NaN where there is no label."""
    y = rows.y[key][index]
    if plan.above is not None:
        y = y if plan.form else y[:, 0]
        found = np.where(np.isnan(y), np.nan, (y > plan.above).astype(np.float64))
    else:
        places, texts = coded_labels(y)
        codes = [np.nan if code is None else code for code in known.codes(texts)]
        found = np.array([*codes, np.nan])[np.nan_to_num(places, nan=len(codes)).astype(np.int64)]
    return found if np.isnan(found).any() else found.astype(np.int64)


def tell_untrained(client: Client) -> None:
    """Name the classes that are to be predicted, but have no training rows."""
    if client.labels is None or client.task.classes is None:
        return
    pairs = [pair for split in SPLITS[1:] if (pair := getattr(client, split)) is not None]
    labels = client.task.labels_of
    held = Counter(code for pair in pairs for code in labels(torch.as_tensor(pair[1])).tolist())
    unseen = sorted(set(held) - set(labels(torch.as_tensor(client.train[1])).tolist()))
    if unseen:
        log.warning(
            "client %r: no training rows for label %s%s; the %d held-out rows with it count as "
            "wrong",
            *(client.name, ", ".join(shown(client.labels[code]) for code in unseen[:SHOWN])),
            *(", ..." if len(unseen) > SHOWN else "", sum(held[code] for code in unseen)),
        )
