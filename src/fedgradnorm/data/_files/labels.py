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
from fedgradnorm.data._files.rows import FileRows
from fedgradnorm.data._files.target import Target
from fedgradnorm.tasks._labels.label_map import LabelMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """The labels of the usable rows; the distinct ones where every place of a row has one."""
    y, good = rows.y[key], rows.good()
    if key not in rows.label_texts:
        return [text for i in good.tolist() if (text := str(y[i]))]
    codes = np.unique(y[good])
    return [rows.label_texts[key][int(code)] for code in codes if not np.isnan(code)]


def _learned(train: FileRows, key: str, plan: Target) -> LabelMap:
    labels, source = _labels(train, key), train.places.bad.source
    if not labels:
        raise DataError(f"{source}: no row has a label; check the column of targets")
    fractions = [text for text in set(labels) if _is_fraction(text)]
    if plan.class_count is None and len(fractions) > MOST_FRACTIONS:
        raise DataError(
            f"{source}: {len(fractions)} different numbers such as {max(fractions)} are no "
            "classes; use task='regression', or list the classes as labels = [...]"
        )
    known = LabelMap.fit(labels, plan.class_count, source, plan.task)
    return known if plan.positive is None else known.ending_with(str(plan.positive), source)


def _is_fraction(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except ValueError:
        return False


def _unseen(rows: FileRows, key: str, plan: Target, known: LabelMap, text: str) -> DataError:
    """The error for a label that the training data does not have."""
    y = np.asarray(rows.y[key])
    wanted = rows.label_texts[key].index(text) if key in rows.label_texts else text
    found = (y == wanted).reshape(len(y), -1).any(axis=1)
    good = rows.good()
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
    y = np.asarray(rows.y[key])[index]
    if plan.above is not None:
        y = y if plan.form else y[:, 0]
        found = np.where(np.isnan(y), np.nan, (y > plan.above).astype(np.float64))
    else:
        texts = rows.label_texts.get(key)
        names, places = (texts, y) if texts is not None else np.unique(y, return_inverse=True)
        codes = known.codes([str(name) for name in names])
        table = np.array([*(np.nan if code is None else code for code in codes), np.nan])
        found = table[np.nan_to_num(np.asarray(places), nan=len(names)).astype(np.int64)]
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
