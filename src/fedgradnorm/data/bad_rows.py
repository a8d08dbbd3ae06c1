"""What to do with a row that cannot be used: stop at it, or leave it out and remember it."""

from __future__ import annotations

import logging
from typing import Literal

from fedgradnorm.errors import DataError, choose

OnBad = Literal["error", "drop"]

logger = logging.getLogger(__name__)

_SHOWN = 10


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


def log_dropped(messages: list[str], source: object) -> None:
    """Warn about rows left out: how many, and the first few by name."""
    if not messages:
        return
    logger.warning("%s: %d bad rows left out", source, len(messages))
    for message in messages[:_SHOWN]:
        logger.warning("left out: %s", message)
    if len(messages) > _SHOWN:
        logger.warning("... and %d more", len(messages) - _SHOWN)


def short(value: object) -> str:
    """A value as it may stand in a one-line message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
