"""What to do with a row that cannot be used: stop at it, or leave it out and remember it."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from fedgradnorm._errors import DataError, choose
from fedgradnorm.data._dropped import log_dropped

OnBad = Literal["error", "drop"]
Row = TypeVar("Row", int, str, bytes)
"""What a reader calls a row: its number, its place in words, or its key."""


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
        beside correcting it or leaving it out.
        """
        message = " ".join(f"{place or row!s}: {why}".split())
        if self.on_bad == "error":
            where = f"{self.source}, {message}" if self.source else message
            more = f", or {way_out}" if way_out else ""
            raise DataError(f"{where}; correct it, or leave such rows out with on_bad='drop'{more}")
        self.reasons.setdefault(row, message)

    @property
    def messages(self) -> list[str]:
        """A line for each row that was left out."""
        return list(self.reasons.values())


def tell_dropped(messages: list[str], source: object) -> None:
    """Warn about rows left out of ``source``, in one line."""
    log_dropped(f"{source}: {len(messages)} bad rows left out", messages)
