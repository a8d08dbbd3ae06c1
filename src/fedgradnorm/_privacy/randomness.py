"""Chance that is a function of a key and a label: whoever has the key can draw it again.

Bits are SHAKE-256 of the key and the label, so that nobody without the key can tell them from
chance, or foresee them from others. With the run's seed as the key a run can be repeated; with a
secret key the same question gets the same noise again, so to repeat a round spends nothing twice.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._errors import ConfigError

KEY_BYTES = 32
GRID = 2.0**-30  # in standard deviations of the noise; see ``noised``


class Chance:
    """Draws for one key. Every draw is named by a label, and of one label there is one draw."""

    def __init__(self, key: bytes, *label: object) -> None:
        self._key, self._label = key, label

    def of(self, *label: object) -> Chance:
        """The draws whose labels begin so."""
        return Chance(self._key, *self._label, *label)

    def bits(self, count: int, *label: object) -> NDArray[np.uint64]:
        """Random 64-bit numbers."""
        named = "\x1f".join(map(str, (*self._label, *label))).encode()
        digest = hashlib.shake_256(self._key + named).digest(8 * count)
        return np.frombuffer(digest, dtype="<u8")

    def uniform(self, count: int, *label: object) -> NDArray[np.float64]:
        """Numbers in (0, 1], with 53 random bits."""
        whole = (self.bits(count, *label) >> np.uint64(11)).astype(np.float64)
        found: NDArray[np.float64] = (whole + 1.0) * np.float64(2.0**-53)
        return found

    def chosen(self, rows: int, rate: float, *label: object) -> NDArray[np.int64]:
        """Row numbers, each in with chance ``rate``, whatever the others are."""
        return np.flatnonzero(self.uniform(rows, *label) <= rate)

    def normal(self, count: int, *label: object) -> NDArray[np.float64]:
        """Standard normal numbers, by Box and Muller."""
        half = -(-count // 2)
        u = self.uniform(2 * half, *label)
        length, angle = np.sqrt(-2 * np.log(u[:half])), 2 * math.pi * u[half:]
        both = np.concatenate([length * np.cos(angle), length * np.sin(angle)])
        return both[:count]

    def noised(
        self, values: NDArray[np.float64], deviation: float, *label: object
    ) -> NDArray[np.float64]:
        """``values`` with normal noise, on a grid.

        The last bits of a float can tell which number it came from (Mironov 2012). The sum is
        therefore rounded to multiples of about a billionth of the deviation.
        """
        step = 2.0 ** math.floor(math.log2(deviation * GRID))
        noise = deviation * self.normal(values.size, *label).reshape(values.shape)
        on_grid: NDArray[np.float64] = np.round((values + noise) / step) * step
        return on_grid


def seed_key(seed: int) -> bytes:
    """The key that a run's seed stands for. It is no secret."""
    return hashlib.blake2b(f"privacy {seed}".encode(), digest_size=KEY_BYTES).digest()


def secret_key(path: Path) -> bytes:
    """The key in a file, which is made, for this user alone, if it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            pass
        else:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
        key = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"privacy.secret: {path}: {error.strerror or error}") from error
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"privacy.secret: {path} holds {len(key)} bytes, not {KEY_BYTES}; name a file that is "
            "not there, and it will be made"
        )
    return key
