"""What to do with a row that cannot be used: stop at it, or leave it out and remember it."""

from __future__ import annotations

from typing import Literal

from fedgradnorm.data.dropped import log_dropped
from fedgradnorm.errors import DataError, choose

OnBad = Literal["error", "drop"]


class BadRows:
    """Collects bad rows under ``on_bad="drop"``; raises at the first under ``"error"``.

    >>> bad = BadRows("drop")
    >>> bad.add("training.txt, row 7", "14 fields, not 15")
    >>> bad.messages
    ['training.txt, row 7: 14 fields, not 15']
    """

    def __init__(self, on_bad: OnBad) -> None:
        self.on_bad = choose(on_bad, ("error", "drop"), "on_bad")
        self.messages: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Note a bad row, or raise a DataError that names it."""
        message = " ".join(f"{where}: {what}".split())
        if self.on_bad == "error":
            raise DataError(f"{message}; correct it, or leave such rows out with on_bad='drop'")
        self.messages.append(message)


def tell_dropped(messages: list[str], source: object) -> None:
    """Warn about rows left out of ``source``, in one line."""
    log_dropped(f"{source}: {len(messages)} bad rows left out", messages)


def short(value: object) -> str:
    """A value as it may stand in a one-line message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
