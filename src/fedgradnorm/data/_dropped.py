"""Rows left out of a data set, or without labels, summed up in one line of the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

LONGEST = 1000  # characters that decide the kind of a reason: the pattern below is quadratic
KINDS = 5  # reasons of different kinds that the line spells out

_VALUE = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S*\d\S*")


def summed_up(reasons: Sequence[str]) -> str:
    """The reasons by kind: of each kind how many there are, and the first.

    >>> summed_up(["row 2: x is 'a', no number", "row 7: x is 'b', no number", "row 9: short"])
    "2 like row 2: x is 'a', no number; row 9: short"
    """
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(_VALUE.sub("_", reason[:LONGEST]), []).append(reason)
    texts = [
        each[0] if len(each) == 1 else f"{len(each)} like {each[0]}" for each in kinds.values()
    ]
    more = sum(len(each) for each in list(kinds.values())[KINDS:])
    return "; ".join(texts[:KINDS]) + (f"; and {more} of other kinds" if more else "")


def log_dropped(what: str, reasons: Sequence[str], where_listed: str = "") -> None:
    """Warn of rows left out: ``what`` was left out, why, and where every row is listed.

    The record carries the rows, so that a run made from a config can write them to its folder.
    """
    if not reasons:
        return
    logger.warning(
        "%s: %s (all in the log at level DEBUG%s)",
        *(what, summed_up(reasons), where_listed),
        extra={"dropped": [f"{what}:", *(f"  {reason}" for reason in reasons)]},
    )
    for reason in reasons:
        logger.debug("left out: %s", reason)


def tell_unlabelled(name: str, targets: Sequence[NDArray[Any]]) -> None:
    """One line in the log about rows that nobody labelled."""
    numbers = [np.isnan(y.reshape(len(y), -1)) for y in targets if y.dtype.kind == "f"]
    some = sum(int(gaps.any(axis=1).sum()) for gaps in numbers)
    if some:
        logger.info(
            "client %r: %d of %d rows have no label, or not all (an empty cell, NA, null, none and "
            "the like); they count for no loss and no metric",
            *(name, some, sum(map(len, targets))),
        )
