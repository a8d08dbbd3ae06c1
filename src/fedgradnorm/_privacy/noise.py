"""Random numbers for privacy: from the operating system, never from a seed, a label or a key.

Whoever can foresee the noise, or draw it again, can subtract it. Fresh noise is therefore the only
kind that a promise covers. ``SeededNoise`` is for experiments that must be repeated exactly.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Source = Literal["fresh", "seeded"]
NOT_PRIVATE = "not private (seeded noise)"
"""What is said wherever an epsilon is shown or stored whose noise came from a seed."""
GRID = 2.0**-30  # in standard deviations of the noise; see ``noised``


class Noise:
    """Fresh draws; nobody can foresee or repeat one. Labels have no effect here."""

    def of(self, *label: object) -> Noise:  # noqa: ARG002
        """The source of draws whose labels begin with ``label``."""
        return self

    def bits(self, count: int, *label: object) -> NDArray[np.uint64]:  # noqa: ARG002
        """Random 64-bit numbers."""
        return np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8")

    def uniform(self, count: int, *label: object) -> NDArray[np.float64]:
        """Numbers in (0, 1], with 53 random bits."""
        whole = (self.bits(count, *label) >> np.uint64(11)).astype(np.float64)
        found: NDArray[np.float64] = (whole + 1.0) * np.float64(2.0**-53)
        return found

    def chosen(self, count: int, rate: float, *label: object) -> NDArray[np.int64]:
        """Poisson sampling: the numbers below ``count``, each with probability ``rate``."""
        return np.flatnonzero(self.uniform(count, *label) <= rate)

    def normal(self, count: int, *label: object) -> NDArray[np.float64]:
        """Standard normal numbers (Box-Muller)."""
        half = -(-count // 2)
        u = self.uniform(2 * half, *label)
        length, angle = np.sqrt(-2 * np.log(u[:half])), 2 * math.pi * u[half:]
        both = np.concatenate([length * np.cos(angle), length * np.sin(angle)])
        return both[:count]

    def noised(
        self, values: NDArray[np.float64], deviation: float, *label: object
    ) -> NDArray[np.float64]:
        """``values`` plus normal noise, on a grid.

        The last bits of a float can reveal which number it came from (Mironov 2012). The sum is
        therefore rounded to multiples of about a billionth of the deviation.
        """
        step = 2.0 ** math.floor(math.log2(deviation * GRID))
        noise = deviation * self.normal(values.size, *label).reshape(values.shape)
        on_grid: NDArray[np.float64] = np.round((values + noise) / step) * step
        return on_grid


class SeededNoise(Noise):
    """One draw per seed and label: reproducible, and therefore not private."""

    def __init__(self, seed: int, *label: object) -> None:
        self._seed, self._label = seed, label
        self._key = hashlib.blake2b(f"privacy {seed}".encode(), digest_size=32).digest()

    def of(self, *label: object) -> SeededNoise:
        """The source of draws whose labels begin with ``label``."""
        return SeededNoise(self._seed, *self._label, *label)

    def bits(self, count: int, *label: object) -> NDArray[np.uint64]:
        """Random 64-bit numbers: SHAKE-256 of seed and label."""
        named = "\x1f".join(map(str, (*self._label, *label))).encode()
        digest = hashlib.shake_256(self._key + named).digest(8 * count)
        return np.frombuffer(digest, dtype="<u8")


def noise_from(source: Source, seed: int) -> Noise:
    """Fresh noise, or with "seeded" that of the run's seed."""
    return SeededNoise(seed) if source == "seeded" else Noise()
