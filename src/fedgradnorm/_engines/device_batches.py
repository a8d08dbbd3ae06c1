"""Batches of all clients, drawn on the device: the same row numbers as :class:`Batches` draws.

On a GPU with many clients, drawing on the host would keep the device waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedgradnorm._engines.engine import Plan
    from fedgradnorm._engines.examples import Examples

AT_ONCE = 1 << 24  # row numbers that are sorted together


class DeviceBatches:
    """The row numbers of a plan's clients, group after group, for rounds in a row."""

    def __init__(self, examples: Examples, plan: Plan) -> None:
        batches, self._device = examples.batches, examples.device
        self._steps = batches.steps
        self._groups: list[tuple[int, int, list[tuple[int, Tensor, Tensor]]]] = []
        for group in plan.groups:
            by_size: dict[int, list[int]] = {}
            for k, name in enumerate(group.names):
                by_size.setdefault(batches.sizes[name], []).append(k)
            alike = []
            for size, members in by_size.items():
                bases = [_signed(batches.base[group.names[k]]) for k in members]
                where = torch.tensor(members, device=self._device)
                alike.append((size, torch.tensor(bases, device=self._device), where))
            self._groups.append((len(group.names), group.part.batch, alike))

    def draw(self, first: int, rounds: int) -> Tensor:
        """Row numbers ``[rounds, numbers]`` from round ``first`` on."""
        found = []
        for clients, width, alike in self._groups:
            shape = rounds, clients, self._steps, width
            table = torch.zeros(shape, dtype=torch.int64, device=self._device)
            for size, bases, where in alike:
                batch = min(width, size)  # of fewer examples; the rest is padding
                reads = self._steps * batch
                start, stop = first * reads, (first + rounds) * reads
                passes = torch.arange(start // size, -(-stop // size), device=self._device)
                some = max(1, AT_ONCE // (len(passes) * size))
                for k in range(0, len(bases), some):
                    keys = _scrambled(bases[k : k + some, None] + passes)
                    drawn = permutations(keys, size).flatten(1)[:, start % size :]
                    own = drawn[:, : rounds * reads].reshape(-1, rounds, self._steps, batch)
                    table[:, where[k : k + some], :, :batch] = own.transpose(0, 1)
            found.append(table.flatten(1))
        return torch.cat(found, dim=1)


def permutations(keys: Tensor, size: int) -> Tensor:
    """``batches.permutations`` in PyTorch's signed numbers, which compare differently."""
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
