"""A secret in shares: any ``least`` of them give it back, fewer are consistent with every secret.

Shamir 1979: shares are points of a polynomial over a prime field whose value at 0 is the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

PRIME = 2**521 - 1  # holds a secret of 64 bytes
SIZE = 66  # bytes of a share


def split(secret: bytes, least: int, count: int) -> list[bytes]:
    """Shares 1 to ``count``."""
    line = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(least - 1))]
    if line[0] >= PRIME or not 1 <= least <= count:
        raise ValueError("the secret is too long, or more shares are needed than there are")
    return [_at(line, x).to_bytes(SIZE, "big") for x in range(1, count + 1)]


def join(shares: Mapping[int, bytes], size: int) -> bytes:
    """The secret of ``size`` bytes from as many shares, by number, as it was split to need."""
    return value_at(0, {x: int.from_bytes(share, "big") for x, share in shares.items()}).to_bytes(
        SIZE, "big"
    )[-size:]


def value_at(place: int, points: Mapping[int, int]) -> int:
    """The value there of the polynomial through these points (Lagrange)."""
    total = 0
    for x, y in points.items():
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * (place - other) % PRIME, below * (x - other) % PRIME
        total += y * above * pow(below, -1, PRIME)
    return total % PRIME


def _at(line: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(line):
        value = (value * x + coefficient) % PRIME
    return value
