"""Batches as a function of a counter: seed, client name, round and step decide the examples.

A client reads its examples in passes, and each pass is a new permutation drawn from (seed, name,
pass). Batch number t takes the next examples of that endless stream. So every example is read once
per pass, a batch may span two passes, and all batches of a client have the same size. There is no
state: a resumed run, another executor or another machine reads the same examples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.seeding import each_number

AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 24}  # examples sorted together, by the kind of device
MOST = 1 << 25  # examples of one round: drawing them takes about a gigabyte


def _signed(value: int) -> int:
    """The same 64 bits as one of PyTorch's numbers, which have a sign."""
    return value - (1 << 64) if value >> 63 else value


GOLDEN, FACTORS = _signed(0x9E3779B97F4A7C15), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _scrambled(values: Tensor) -> Tensor:
    """A bijection of 64-bit numbers that looks random (the finalizer of SplitMix64)."""
    for shift, factor in zip((30, 27), FACTORS, strict=True):
        values = (values ^ _shifted(values, shift)) * _signed(factor)
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, by: int) -> Tensor:
    """To the right, with zeros coming in."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def permutations(keys: Tensor, size: int) -> Tensor:
    """One permutation of 0 .. size-1 for each key, all drawn at once."""
    steps = torch.arange(1, size + 1, device=keys.device) * GOLDEN
    values = _scrambled(keys[..., None] + steps)
    return (values ^ _signed(1 << 63)).argsort(dim=-1)  # as unsigned numbers; no two are equal


def stretches(bases: Tensor, size: int, start: int, stop: int) -> Tensor:
    """Examples ``start`` to ``stop`` of the streams of clients with ``size`` examples each.

    ``bases`` are the clients' own numbers; each stream is endless, one pass after another.
    """
    passes = torch.arange(start // size, -(-stop // size), device=bases.device)
    here = slice(start % size, start % size + stop - start)
    some = max(1, AT_ONCE[bases.device.type] // max(1, len(passes) * size))
    return torch.cat([
        permutations(_scrambled(few[:, None] + passes), size).flatten(1)[:, here].contiguous()
        for few in bases.split(some)
    ])  # fmt: skip


class Batches:
    """The batches of some clients, as indices of their examples.

    ``steps`` is how many batches a round reads. The batches of many rounds are drawn at once, for
    all clients of one size together, so that a round needs no sorting and no loop over steps.
    Several tasks of one ``owner`` read the same examples.
    """

    WINDOW = 1 << 21  # examples drawn ahead at most (but at least one round's)
    ROUNDS = 256  # drawn at once at least: a GPU must not wait for the next ones
    FEW = 200  # clients whose batches are drawn for many rounds at once, active or not

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
        self._largest = steps * max(self.batch.values(), default=0)  # of a client, in a round
        names = [owners[n] for n in sizes] if owners else list(sizes)
        numbers = map(_signed, each_number(names, seed, "batches"))
        self.base = dict(zip(sizes, numbers, strict=True))
        if len(self.sizes) <= self.FEW:
            self._check_fits(list(sizes))
        epoch = max((-(-sizes[n] // (steps * self.batch[n])) for n in sizes), default=1)
        per_round = steps * sum(self.batch.values())
        self.window = max(1, min(max(epoch, self.ROUNDS), self.WINDOW // max(1, per_round)))
        self._first = -1
        self._drawn_rows: dict[str, NDArray[np.int64]] = {}

    def _check_fits(self, names: Sequence[str]) -> None:
        """A ConfigError if a round reads more examples than fit, and more than its clients have."""
        if self._largest * len(names) <= MOST:
            return
        read = self.steps * sum(self.batch[name] for name in names)
        most = max(MOST, sum(self.sizes[name] for name in names))
        if read > most:
            raise ConfigError(
                f"a round would read {read:,} examples in {self.steps:,} steps, and at most "
                f"{most:,} fit in memory; lower head_steps, shared_steps or batch_size"
            )

    def only(self, name: str, size: int) -> Batches:
        """The batches of one client, drawn from ``size`` of its examples."""
        if size == self.sizes[name]:
            return self
        one = copy.copy(self)
        one.sizes, one.batch = {name: size}, {name: min(self.batch[name], size)}
        return one

    def of_round(
        self, round_number: int, names: Iterable[str] | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """Examples [steps, batch] of some clients in a round; None: of all."""
        names = list(self.sizes if names is None else names)
        if len(self.sizes) > self.FEW:
            self._check_fits(names)
            return self.many(names, round_number * self.steps, self.steps)
        first = round_number - round_number % self.window
        if first != self._first:
            steps = self.window * self.steps
            self._drawn_rows = self.many(list(self.sizes), first * self.steps, steps)
            self._first = first
        start = (round_number - first) * self.steps
        return {name: self._drawn_rows[name][start : start + self.steps] for name in names}

    def rows(self, name: str, step: int) -> NDArray[np.int64]:
        """The examples of client ``name``'s batch number ``step``, counted from the run's start."""
        batch: NDArray[np.int64] = self.many([name], step, 1)[name][0]
        return batch

    def many(self, names: Sequence[str], first: int, steps: int) -> dict[str, NDArray[np.int64]]:
        """Examples [steps, batch] of each client for ``steps`` batches from ``first`` on.

        They are a stretch of each client's endless stream of passes.
        """
        found: dict[str, NDArray[np.int64]] = {}
        by_size: dict[int, list[str]] = {}
        for name in names:
            by_size.setdefault(self.sizes[name], []).append(name)
        for size, alike in by_size.items():
            batch = self.batch[alike[0]]
            bases = torch.tensor([self.base[name] for name in alike], device="cpu")
            streams = stretches(bases, size, first * batch, (first + steps) * batch)
            found.update(zip(alike, streams.reshape(-1, steps, batch).numpy(), strict=True))
        return found


def batches_of(
    clients: Sequence[Client], batch_size: int | None, seed: int, steps: int = 1
) -> Batches:
    owners = {client.name: client.owner for client in clients}
    return Batches({c.name: c.drawn for c in clients}, batch_size, seed, steps, owners)
