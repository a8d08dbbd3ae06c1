"""Labels of a client's files: which classes there are, and each row's class number."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedgradnorm._checks import shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import DataError
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._files.target import Target
from fedgradnorm.tasks._labels.label_map import LabelMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

SHOWN = 10  # labels that a line of the log names


def label_map(splits: Mapping[str, FileRows], plan: Target) -> LabelMap:
    """The classes: those listed, or the training labels, and after them those of other splits.

    Under ``on_bad="drop"`` a label without training rows is a class too. Its rows could be read,
    and a score that left them out would be too good.
    """
    listed, train = plan.label_map(), splits["train"]
    if plan.above is not None:
        return listed or LabelMap(("no", "yes"), False)
    known = listed or _learned(train, plan)
    for rows in splits.values():
        if rows.label_texts is not None:
            known = _with_places(rows, known, plan, fixed=listed is not None)
            continue
        labels = [str(label) for label in rows.y]
        codes = known.codes(labels)
        unseen = [int(i) for i in rows.good() if labels[i] and codes[i] is None]
        if unseen and (listed or rows.bad.on_bad == "error" or plan.class_count is not None):
            raise _unseen(rows, unseen[0], plan, known)
        known = known.extended([labels[i] for i in unseen])
    return known


def _with_places(rows: FileRows, known: LabelMap, plan: Target, *, fixed: bool) -> LabelMap:
    """The classes, where every place of a row has a label, with those that only this split has."""
    texts = _texts_at_places(rows)
    unseen = [text for text, code in zip(texts, known.codes(texts), strict=True) if code is None]
    if unseen and (fixed or rows.bad.on_bad == "error" or plan.class_count is not None):
        assert rows.label_texts is not None
        y, code = np.asarray(rows.y), rows.label_texts.index(unseen[0])
        row = int(np.flatnonzero((y == code).reshape(len(y), -1).any(axis=1))[0])
        raise _unseen(rows, row, plan, known, unseen[0])
    return known.extended(unseen)


def _texts_at_places(rows: FileRows) -> list[str]:
    """The distinct labels of rows with a label at every place."""
    assert rows.label_texts is not None
    codes = np.unique(np.asarray(rows.y)[rows.good()])
    return [rows.label_texts[int(code)] for code in codes if not np.isnan(code)]


def _learned(train: FileRows, plan: Target) -> LabelMap:
    if train.label_texts is not None:
        labels = _texts_at_places(train)
    else:
        labels = [str(train.y[i]) for i in train.good() if train.y[i]]
    if not labels:
        raise DataError(f"{train.bad.source}: no row has a label; check the column of targets")
    known = LabelMap.fit(labels, plan.class_count, train.bad.source, plan.task)
    if plan.positive is not None:
        known = known.ending_with(str(plan.positive), train.bad.source)
    return known


def _unseen(
    rows: FileRows, index: int, plan: Target, known: LabelMap, text: str | None = None
) -> DataError:
    label = shown(rows.y[index] if text is None else text)
    if plan.labels is not None:
        some = ", ".join(map(repr, known.names[:SHOWN]))
        return DataError(
            f"{rows.where(index)}: label {label} is none of labels = [{some}]; correct it, or add "
            "it to the list"
        )
    way_out = "set on_bad='drop' to keep such rows, which then count as wrong"
    if plan.task == "binary":
        way_out = "use task='classification'"
    elif plan.classes is not None:
        way_out = f"leave classes = {plan.classes} out"
    return DataError(
        f"{rows.where(index)}: label {label} does not occur in the training data; correct it, "
        f"list all labels as labels = [...], or {way_out}"
    )


def class_numbers(
    rows: FileRows, index: NDArray[np.int64], known: LabelMap, plan: Target
) -> NDArray[Any]:
    """The class of each row at ``index``; NaN where there is no label."""
    codes: list[int | None]
    if rows.label_texts is not None or (plan.above is not None and plan.form):
        return _numbers_at_places(rows, index, known, plan)
    if plan.above is not None:
        values = np.asarray(rows.y)[index][:, 0].tolist()
        codes = [None if value != value else int(value > plan.above) for value in values]
    else:
        codes = known.codes([str(rows.y[i]) for i in index])
    if None not in codes:
        return np.array(codes, dtype=np.int64)
    return np.array([np.nan if code is None else code for code in codes])


def _numbers_at_places(
    rows: FileRows, index: NDArray[np.int64], known: LabelMap, plan: Target
) -> NDArray[Any]:
    """The class at every place of the rows; NaN where there is no label."""
    y = np.asarray(rows.y, dtype=np.float64)[index]
    gaps = np.isnan(y)
    if rows.label_texts is None:
        found = (y > (plan.above or 0.0)).astype(np.float64)
    else:
        classes = known.codes(list(rows.label_texts))
        table = np.array([np.nan if code is None else code for code in classes])
        found = table[np.where(gaps, 0, y).astype(np.int64)]
    found = np.where(gaps, np.nan, found)
    return found if gaps.any() else found.astype(np.int64)


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
