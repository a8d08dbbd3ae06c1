"""A run's own log has INFO lines; those who listen further up hear what they asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable


class _Upward(logging.Handler):
    """Hands records to the root logger's handlers, which do not look at the loggers' levels."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on, as propagation would."""
        logging.getLogger().callHandlers(record)


def listen(handler: logging.Handler) -> Callable[[], None]:
    """Let ``handler`` have all lines from INFO on, and nobody else more than before; the undoing.

    A logger's level counts for its own records only: with INFO here, a root logger at WARNING
    would show INFO lines.
    """
    logger = logging.getLogger("fedgradnorm")
    level, before, propagate = logger.level, logger.getEffectiveLevel(), logger.propagate
    logger.addHandler(handler)
    if before <= logging.INFO:
        return lambda: logger.removeHandler(handler)
    logger.setLevel(logging.INFO)
    others = [one for one in logger.handlers if one is not handler and one.level < before]
    levels = [one.level for one in others]
    for one in others:
        one.setLevel(before)
    upward = _Upward(before)
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
