"""Numbers that chance starts from: decided by a description, and by nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def number(*parts: object) -> int:
    """64 bits from any description, stable across processes, machines and versions.

    >>> number("a", 1) == number("a", 1), number("a", 1) == number("a", 2)
    (True, False)
    """
    return _bits(_BETWEEN.join(map(str, parts)))


def each_number(names: Iterable[str], *parts: object) -> list[int]:
    """:func:`number` of ``parts`` and each of many names.

    >>> each_number(["ann", "bob"], 0, "head") == [number(0, "head", n) for n in ("ann", "bob")]
    True
    """
    begin = "".join(f"{part}{_BETWEEN}" for part in parts)
    return [_bits(begin + name) for name in names]


_BETWEEN = "\x1f"


def _bits(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
