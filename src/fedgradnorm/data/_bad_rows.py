"""Rows that cannot be used: stop at the first, or leave them out and say so in one line."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._errors import DataError, choose

OnBad = Literal["error", "drop"]
Row = TypeVar("Row", int, str, bytes)
"""What a reader calls a row: its number, its place in words, or its key."""

KINDS = 5  # reasons of different kinds that the line spells out

logger = logging.getLogger(__name__)


class BadRows(Generic[Row]):
    """Collects bad rows under ``on_bad="drop"``; raises at the first under ``"error"``.

    ``source`` is the file that all the rows are of, if they are of one; errors begin with it.

    >>> bad = BadRows("drop")
    >>> bad.add("training.txt, row 7", "14 fields, not 15")
    >>> bad.messages
    ['training.txt, row 7: 14 fields, not 15']
    """

    def __init__(self, on_bad: OnBad, source: str = "") -> None:
        self.on_bad = choose(on_bad, ("error", "drop"), "on_bad")
        self.source = source
        self.reasons: dict[Row, str] = {}

    def add(self, row: Row, why: str, place: str = "", way_out: str = "") -> None:
        """Note the first thing that is wrong with a row, or raise a DataError that names it.

        ``place`` says where the row is, unless ``row`` itself does; ``way_out`` what can be done
        besides correcting it or leaving it out.
        """
        message = " ".join(f"{place or row!s}: {why}".split())
        if self.on_bad == "error":
            where = f"{self.source}, {message}" if self.source else message
            more = f", or {way_out}" if way_out else ""
            raise DataError(f"{where}; correct it, or leave such rows out with on_bad='drop'{more}")
        self.reasons.setdefault(row, message)

    @property
    def messages(self) -> list[str]:
        return list(self.reasons.values())


def summed_up(reasons: Sequence[str]) -> str:
    """The reasons by what follows the place: of each how many there are, and the first.

    >>> summed_up(["row 2: x is '?', no number", "row 7: x is '?', no number", "row 9: short"])
    "2 like row 2: x is '?', no number; row 9: short"
    """
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(reason.partition(": ")[2], []).append(reason)
    groups = list(kinds.values())
    texts = [one[0] if len(one) == 1 else f"{len(one)} like {one[0]}" for one in groups[:KINDS]]
    more = sum(map(len, groups[KINDS:]))
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def log_dropped(what: str, reasons: Sequence[str]) -> None:
    """Warn of rows left out: ``what`` was left out, and why.

    The record carries the rows, so that a run made from a config can write them to its folder.
    """
    if not reasons:
        return
    logger.warning(
        "%s: %s (all in the log at level DEBUG)",
        what,
        summed_up(reasons),
        extra={"dropped": [f"{what}:", *(f"  {reason}" for reason in reasons)]},
    )
    for reason in reasons:
        logger.debug("left out: %s", reason)


def tell_dropped(messages: list[str], source: object) -> None:
    log_dropped(f"{source}: {len(messages)} bad rows left out", messages)


def tell_unlabelled(name: str, targets: Sequence[NDArray[Any]]) -> None:
    """One line in the log about rows that nobody labeled."""
    numbers = [np.isnan(y.reshape(len(y), -1)) for y in targets if y.dtype.kind == "f"]
    some = sum(int(gaps.any(axis=1).sum()) for gaps in numbers)
    if some:
        logger.info(
            "client %r: %d of %d rows have no label, or not all (an empty cell, NA, null, none and "
            "the like); they count for no loss and no metric",
            *(name, some, sum(map(len, targets))),
        )
