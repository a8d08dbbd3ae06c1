"""Which rows of all clients' joint inputs are read, drawn for many rounds at once.

On a GPU they are drawn where they are needed: with many clients it would wait for a CPU, and a copy
to it would wait for all that was asked of it before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._round.batches import Batches

AT_ONCE = 1 << 22  # rows that are sorted together, in memory that is free again afterwards


class Rows(Protocol):
    """Row numbers from ``data.batches``, moved to where each client's rows begin."""

    def draw(self, first: int, steps: int) -> Tensor:
        """Everybody's batches of ``steps`` steps from ``first`` on: [steps, joint batch]."""


def make_rows(batches: Batches, begin: Mapping[str, int], device: torch.device) -> Rows:
    """``begin`` holds the first row of each client, in the order of the joint batch."""
    return (GpuRows if device.type == "cuda" else CpuRows)(batches, begin, device)


class RowWindows:
    """The rows of one window of rounds, drawn when the first of them is asked for."""

    def __init__(self, batches: Batches, begin: Mapping[str, int], device: torch.device) -> None:
        self._rows = make_rows(batches, begin, device)
        self._rounds, self._steps = batches.window, batches.steps
        self._table, self._start = torch.empty(0, dtype=torch.int64), -1

    def coming(self, first: int, most: int) -> Tensor:
        """Rows that everybody reads in rounds from ``first`` on: [rounds, steps, joint batch].

        As many rounds as are drawn together, but no more than ``most``.
        """
        start = first - first % self._rounds
        if start != self._start:
            table = self._rows.draw(start * self._steps, self._rounds * self._steps)
            self._table, self._start = table.view(self._rounds, self._steps, -1), start
        return self._table[first - start :][:most]


class CpuRows:
    """Drawn by NumPy."""

    def __init__(self, batches: Batches, begin: Mapping[str, int], device: torch.device) -> None:
        self.batches, self.begin, self.device = batches, begin, device

    def draw(self, first: int, steps: int) -> Tensor:
        """All batches side by side."""
        drawn = self.batches.many(list(self.begin), first, steps)
        table = [drawn[name] + start for name, start in self.begin.items()]
        return torch.from_numpy(np.concatenate(table, axis=1)).to(self.device)


class Alike(NamedTuple):
    """Clients of one size, drawn together."""

    names: list[str]
    size: int
    batch: int
    bases: Tensor
    starts: Tensor


class GpuRows:
    """The same numbers, without a copy from the host or a step for each client."""

    def __init__(self, batches: Batches, begin: Mapping[str, int], device: torch.device) -> None:
        self.order, self.device = list(begin), device
        self._alike: list[Alike] = []
        for size in sorted({batches.sizes[name] for name in begin}):
            every = [name for name in begin if batches.sizes[name] == size]
            some = max(1, AT_ONCE // size)
            for names in (every[k : k + some] for k in range(0, len(every), some)):
                bases = torch.tensor([_signed(batches.base[n]) for n in names], device=device)
                starts = torch.tensor([begin[n] for n in names], device=device)
                self._alike.append(Alike(names, size, batches.batch[names[0]], bases, starts))

    def draw(self, first: int, steps: int) -> Tensor:
        """All batches side by side; clients of one size are drawn together."""
        found: dict[str, Tensor] = {}
        for names, size, batch, bases, starts in self._alike:
            start, stop = first * batch, (first + steps) * batch
            passes = torch.arange(start // size, -(-stop // size), device=self.device)
            drawn = permutations(_scrambled(bases[:, None] + passes), size).flatten(1)
            offset = start % size
            rows = drawn[:, offset : offset + steps * batch] + starts[:, None]
            found.update(zip(names, rows.view(len(names), steps, batch), strict=True))
        return torch.cat([found[name] for name in self.order], dim=1)


def permutations(keys: Tensor, size: int) -> Tensor:
    """``data.batches.permutations`` in PyTorch's signed numbers, which compare differently."""
    steps = torch.arange(1, size + 1, device=keys.device) * _signed(0x9E3779B97F4A7C15)
    values = _scrambled(keys[..., None] + steps)
    return (values ^ _signed(1 << 63)).argsort(dim=-1)  # no two are equal


def _scrambled(values: Tensor) -> Tensor:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ _shifted(values, shift)) * _signed(factor)
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, by: int) -> Tensor:
    """To the right, with zeros coming in."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
