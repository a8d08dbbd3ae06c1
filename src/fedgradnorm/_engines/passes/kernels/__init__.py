"""Kernels in Triton, for a GPU, imported where they are used: all else runs without Triton.

Each computes what plain code beside it computes too, and its users go without where it fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger("fedgradnorm")


def built(what: str, make: Callable[[], T]) -> T | None:
    """What ``make`` gives, which tries its kernels out; None, and a line in the log, if one fails.

    There may be no compiler, an old one, or too little memory: all cost only speed.
    """
    try:
        return make()
    except Exception as error:  # Triton's own are of many kinds
        log.info("no kernels for %s: %s", what, " ".join(str(error).split())[:120])
        return None
