"""Batches from a counter: (seed, client name, round, step) decides the rows, nothing else does.

A client reads its rows in passes; each pass is a fresh permutation drawn from (seed, name, pass).
Batch number t takes the next rows of that endless stream. So every row is seen once a pass, a batch
may lie in two passes, and all batches of a client have one size. There is no state: a
resumed run, another engine or another machine reads the same rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._errors import ConfigError
from fedgradnorm._round.seeding import each_number


def _scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that looks random (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permutations(keys: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """One permutation of 0 .. size-1 for each key, all drawn at once."""
    scrambled = _scrambled(keys[..., None] + _steps(size))
    order: NDArray[np.int64] = np.argsort(scrambled, kind="stable")
    return order


def _steps(size: int) -> NDArray[np.uint64]:
    return np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


AT_ONCE = 1 << 20  # row numbers sorted together; more are sorted one permutation at a time
MOST = 1 << 25  # row numbers of one round: drawing them takes about a gigabyte


def bases_of(seed: int, owners: Iterable[str]) -> list[int]:
    """What all batches of each client follow from."""
    return each_number(owners, seed, "batches")


def check_rows_of_round(per_round: int, held: int, steps: int) -> None:
    """A ConfigError if a round reads more rows than fit, and more than its clients have."""
    most = max(MOST, held)
    if per_round > most:
        raise ConfigError(
            f"a round would read {per_round:,} rows in {steps:,} steps, and at most {most:,} "
            "fit in memory; lower head_steps, shared_steps or batch_size"
        )


def stretches(
    bases: NDArray[np.uint64], size: int, batch: int, first: int, steps: int
) -> NDArray[np.int64]:
    """Row numbers [clients, steps, batch] of clients of one size, from batch ``first`` on.

    They are a stretch of each client's endless stream of passes.
    """
    start, stop = first * batch, (first + steps) * batch
    passes = np.arange(start // size, -(-stop // size), dtype=np.uint64)
    if len(bases) * len(passes) * size > AT_ONCE:
        parts = [_stretch(base, passes, size, start, stop) for base in bases]
        return np.stack(parts).reshape(len(bases), steps, batch)
    rows = permutations(_scrambled(bases[:, None] + passes), size).reshape(len(bases), -1)
    offset = start - int(passes[0]) * size
    found: NDArray[np.int64] = rows[:, offset : offset + steps * batch]
    return found.reshape(len(bases), steps, batch)


def _stretch(
    base: np.uint64, passes: NDArray[np.uint64], size: int, start: int, stop: int
) -> NDArray[np.int64]:
    """The same stretch of one large client, pass by pass: memory for one permutation."""
    parts = []
    for turn, key in zip(passes.tolist(), _scrambled(base + passes), strict=True):
        first = turn * size
        parts.append(part_of_permutation(key, size, max(0, start - first), stop - first))
    return np.concatenate(parts)


def part_of_permutation(key: np.uint64, size: int, begin: int, end: int) -> NDArray[np.int64]:
    """Places ``begin`` to ``end`` of a key's permutation, without sorting the others.

    The scrambled numbers all differ, so who has which place does not depend on how they are sorted.
    """
    end = min(size, end)
    values = _scrambled(key + _steps(size))
    there = np.argpartition(values, (begin, end - 1))[begin:end]
    found: NDArray[np.int64] = there[np.argsort(values[there])]
    return found


class Batches:
    """The batches of some clients, as row numbers.

    ``steps`` is how many batches a round reads. The rows of many rounds are drawn at once, for all
    clients of one size together, so that a round costs no sorting and no loop over steps.
    Rows of one ``owner``, which has several tasks, are drawn alike.
    """

    WINDOW = 1 << 21  # row numbers kept at most (but at least one round's)
    ROUNDS = 256  # drawn at once at least: a GPU must not wait for the next ones
    FEW = 200  # clients whose batches are drawn for many rounds at once, whoever takes part

    def __init__(
        self,
        sizes: Mapping[str, int],
        batch_size: int | None,
        seed: int,
        steps: int = 1,
        owners: Mapping[str, str] | None = None,
    ) -> None:
        self.sizes, self.steps = dict(sizes), steps
        self.batch = {n: min(batch_size or size, size) for n, size in sizes.items()}
        bases = bases_of(seed, [(owners or {}).get(n, n) for n in sizes])
        self.base = dict(zip(sizes, bases, strict=True))
        per_round = steps * sum(self.batch.values())
        if len(self.sizes) <= self.FEW:
            check_rows_of_round(per_round, sum(sizes.values()), steps)
        epoch = max((-(-sizes[n] // (steps * self.batch[n])) for n in sizes), default=1)
        self.window = max(1, min(max(epoch, self.ROUNDS), self.WINDOW // max(1, per_round)))
        self._first = -1
        self._drawn_rows: dict[str, NDArray[np.int64]] = {}

    def only(self, name: str, size: int) -> Batches:
        """The batches of one client, drawn from as many of its rows."""
        if size == self.sizes[name]:
            return self
        one = copy.copy(self)
        one.sizes, one.batch = {name: size}, {name: min(self.batch[name], size)}
        return one

    def of_round(self, round_number: int) -> dict[str, NDArray[np.int64]]:
        """Row numbers [steps, batch] of every client in a round."""
        first = round_number - round_number % self.window
        if first != self._first:
            steps = self.window * self.steps
            self._drawn_rows = self.many(list(self.sizes), first * self.steps, steps)
            self._first = first
        start = (round_number - first) * self.steps
        return {name: rows[start : start + self.steps] for name, rows in self._drawn_rows.items()}

    def drawn(self, names: Sequence[str], round_number: int) -> dict[str, NDArray[np.int64]]:
        """Row numbers [steps, batch] of some clients in a round."""
        if len(self.sizes) <= self.FEW:
            rows = self.of_round(round_number)
            return {name: rows[name] for name in names}
        read = self.steps * sum(self.batch[name] for name in names)
        check_rows_of_round(read, sum(self.sizes[name] for name in names), self.steps)
        return self.many(names, round_number * self.steps, self.steps)

    def rows(self, name: str, step: int) -> NDArray[np.int64]:
        """Row numbers of client ``name``'s batch number ``step`` (counted from the run's start)."""
        batch: NDArray[np.int64] = self.many([name], step, 1)[name][0]
        return batch

    def many(self, names: Sequence[str], first: int, steps: int) -> dict[str, NDArray[np.int64]]:
        """Row numbers [steps, batch] of each client for ``steps`` batches from ``first`` on."""
        found: dict[str, NDArray[np.int64]] = {}
        by_size: dict[int, list[str]] = {}
        for name in names:
            by_size.setdefault(self.sizes[name], []).append(name)
        for size, alike in by_size.items():
            bases = np.array([self.base[name] for name in alike], dtype=np.uint64)
            drawn = stretches(bases, size, self.batch[alike[0]], first, steps)
            found.update(zip(alike, drawn, strict=True))
        return found
