"""A run's own log: INFO lines, one line each, and nobody else hears more than they asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgradnorm._runs.files import opened_to_write


class _Upward(logging.Handler):
    """Hands records to the root logger's handlers, which do not look at the loggers' levels.

    Without any, Python prints warnings itself. It must not where ``heard``: another handler of
    ours, such as the command line's, has shown them.
    """

    def __init__(self, level: int, heard: bool) -> None:
        super().__init__(level)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on, as propagation would."""
        root = logging.getLogger()
        if root.handlers or not self.heard:
            root.callHandlers(record)


def listen(handler: logging.Handler) -> Callable[[], None]:
    """Let ``handler`` have all lines from INFO on, and nobody else more than before; the undoing.

    A logger's level counts for its own records only: with INFO here, a root logger at WARNING
    would show INFO lines.
    """
    logger = logging.getLogger("fedgradnorm")
    level, before, propagate = logger.level, logger.getEffectiveLevel(), logger.propagate
    heard = bool(logger.handlers)
    logger.addHandler(handler)
    if before <= logging.INFO:
        return lambda: logger.removeHandler(handler)
    logger.setLevel(logging.INFO)
    others = [one for one in logger.handlers if one is not handler and one.level < before]
    levels = [one.level for one in others]
    for one in others:
        one.setLevel(before)
    upward = _Upward(before, heard)
    if propagate:
        logger.addHandler(upward)
        logger.propagate = False

    def undo() -> None:
        logger.removeHandler(handler)
        logger.removeHandler(upward)
        logger.setLevel(level)
        logger.propagate = propagate
        for one, own in zip(others, levels, strict=True):
            one.setLevel(own)

    return undo


def start_log(path: Path, before: Sequence[str]) -> Callable[[], None]:
    """Write ``before``, and from now on all that the library logs, to a file; the end of it."""
    with opened_to_write(path, "a") as file:
        file.writelines(f"{line}\n" for line in before)
    handler = _Log(path, encoding="utf-8")
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    undo = listen(handler)

    def end() -> None:
        undo()
        with suppress(OSError):  # what it still holds cannot be written
            handler.close()

    return end


class _OneLine(logging.Formatter):
    """Escapes control characters: a name with a line break must not look like another line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Log(logging.FileHandler):
    """A log file; where it cannot be written, training continues without a word on the terminal."""

    def _open(self) -> Any:
        return opened_to_write(Path(self.baseFilename), "a")

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: the run's tables and checkpoints meet the same disk, and say so."""
