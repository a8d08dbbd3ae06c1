"""How much memory there is: what cannot fit is refused before it is asked for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup/memory.max")
"""What a container on Linux may use; "max" where that is everything."""


def machine_memory() -> int:
    """Bytes of this machine's memory, or of the container's share of it."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        return min(whole, int(_GROUP.read_text()))
    return whole
