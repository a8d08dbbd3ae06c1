"""What data may take of the memory: a size that cannot fit is refused before any of it is taken."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedgradnorm._errors import ConfigError, FedGradNormError

ENV = "FEDGRADNORM_MEMORY"
"""The environment variable that sets the limit, in gigabytes."""

GIGABYTE = 10**9

_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """Bytes that data may take: what FEDGRADNORM_MEMORY says, or what the machine has."""
    given = os.environ.get(ENV)
    if given is None:
        return _machine()
    try:
        return int(float(given) * GIGABYTE)
    except (ValueError, OverflowError):
        raise ConfigError(f"{ENV} must be a number of gigabytes, not {given!r}") from None


def check_memory(needed: int, what: str, error: type[FedGradNormError]) -> None:
    """Raise ``error`` where ``needed`` bytes are more than the limit."""
    limit = memory_limit()
    if needed > limit:
        raise error(
            f"{what} needs {_gigabytes(needed)} of memory, the limit is {_gigabytes(limit)}; make "
            f"it smaller, or set {ENV} to the gigabytes that may be taken"
        )


def check_draw(who: str, counts: Mapping[str, int], seed: int, row_bytes: int = 0) -> None:
    """ConfigError unless counts and seed are whole numbers, and that many rows fit in memory."""
    wanted = [*((name, count, 1) for name, count in counts.items()), ("seed", seed, 0)]
    for name, value, least in wanted:
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < least:
            raise ConfigError(
                f"{who}: {name} must be a whole number from {least} on, not {value!r}"
            )
    listed = " and ".join(f"{name} = {count}" for name, count in counts.items())
    check_memory(sum(map(int, counts.values())) * row_bytes, f"{who}: {listed}", ConfigError)


def _machine() -> int:
    """The machine's memory, or less where this process is given less."""
    found = [sys.maxsize]
    if hasattr(os, "sysconf"):  # Windows does not tell: there the variable is the only limit
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for place in _CGROUP:
        with suppress(OSError, ValueError):  # not there, or "max": no limit
            found.append(int(Path(place).read_text()))
    return min(found)


def _gigabytes(size: int) -> str:
    """A size in words; whole numbers only, because a request may be beyond any float."""
    if size < GIGABYTE:
        return f"{max(1, size // 10**6)} MB"
    return f"{size // GIGABYTE} GB"
