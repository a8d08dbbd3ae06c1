"""Batches from a counter: (seed, client name, round, step) decides the rows, nothing else does.

A client reads its rows in passes; each pass is a fresh permutation drawn from (seed, name, pass).
Batch number t takes the next rows of that endless stream, so every row is seen once a pass, a
batch may straddle two passes, and all batches of a client have one size. There is no state: a
resumed run, another engine or another machine reads the same rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def number(*parts: object) -> int:
    """64 bits from any description, stable across processes, machines and versions.

    >>> number("a", 1) == number("a", 1), number("a", 1) == number("a", 2)
    (True, False)
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that looks random (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permutations(keys: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """One permutation of 0 .. size-1 for each key, all drawn at once."""
    steps = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.argsort(_scrambled(keys[..., None] + steps), axis=-1, kind="stable")


class Batches:
    """The batches of some clients, as row numbers."""

    def __init__(self, sizes: dict[str, int], batch_size: int | None, seed: int) -> None:
        self.names = tuple(sizes)
        self.sizes = sizes
        self.batch = {n: min(batch_size or size, size) for n, size in sizes.items()}
        self._base = {n: np.uint64(number(seed, "batches", n)) for n in sizes}
        self._passes: dict[str, tuple[int, NDArray[np.int64]]] = {}

    def rows(self, name: str, step: int) -> NDArray[np.int64]:
        """Row numbers of client ``name``'s batch number ``step`` (counted from the run's start)."""
        return self.many([name], step, 1)[name][0]

    def many(self, names: Sequence[str], first: int, steps: int) -> dict[str, NDArray[np.int64]]:
        """Row numbers [steps, batch] of each client for ``steps`` batches from ``first`` on."""
        return {name: self._window(name, first, steps) for name in names}

    def _window(self, name: str, first: int, steps: int) -> NDArray[np.int64]:
        size, batch = self.sizes[name], self.batch[name]
        start, stop = first * batch, (first + steps) * batch
        passes = range(start // size, -(-stop // size))
        rows = np.concatenate([self._pass(name, number) for number in passes])
        offset = start - passes[0] * size
        return rows[offset : offset + steps * batch].reshape(steps, batch)

    def _pass(self, name: str, which: int) -> NDArray[np.int64]:
        held = self._passes.get(name)
        if held is None or held[0] != which:
            with np.errstate(over="ignore"):
                key = _scrambled(self._base[name][None] + np.uint64(which))
                held = (which, permutations(key, self.sizes[name])[0])
            self._passes[name] = held
        return held[1]
