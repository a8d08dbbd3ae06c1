"""What a client's inputs may be: one tensor, named tensors, or sequences of different lengths.

All of them have rows: they have a length, are indexed by rows, moved to a device and joined. How a
network takes them is decided in one place, :func:`call`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedgradnorm._errors import DataError


class Composite(ABC):
    """Rows that are no single tensor."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def __getitem__(self, rows: Any) -> Inputs:
        """Some rows, by a slice, a tensor of row numbers, or of true and false."""

    @abstractmethod
    def to(self, device: torch.device | str, dtype: torch.dtype) -> Composite:
        """All of it on a device; numbers with a fraction in ``dtype``, whole ones as they are."""

    @abstractmethod
    def leaves(self) -> dict[str, Tensor]:
        """All numbers, as tensors by name."""

    @abstractmethod
    def form(self) -> dict[str, Any]:
        """What a row looks like, as plain data."""

    @abstractmethod
    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """How a network is called with these rows."""

    @property
    def device(self) -> torch.device:
        return next(iter(self.leaves().values())).device


Inputs = Tensor | Composite


class Fields(Composite):
    """Named inputs with the same rows: a network is called with them as keyword arguments."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields: dict[str, Inputs] = dict(fields)

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def __getitem__(self, rows: Any) -> Fields:
        return Fields({name: part[rows] for name, part in self.fields.items()})

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Fields:
        return Fields({name: moved(part, device, dtype) for name, part in self.fields.items()})

    def leaves(self) -> dict[str, Tensor]:
        return {
            f"{name}{'.' * bool(key)}{key}": leaf
            for name, part in self.fields.items()
            for key, leaf in leaves(part).items()
        }

    def form(self) -> dict[str, Any]:
        return {name: row_form(part) for name, part in self.fields.items()}

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """A keyword for each field, and ``NAME_mask`` for sequences."""
        found: dict[str, Tensor] = {}
        for name, part in self.fields.items():
            if isinstance(part, Sequences):
                found[name], found[f"{name}_mask"] = part.padded()
            else:
                assert isinstance(part, Tensor)
                found[name] = part
        return (), found


class Sequences(Composite):
    """Rows of different lengths: padded with zeros to the longest of a batch, with a mask."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> Sequences:
        if isinstance(rows, slice):
            return Sequences(self.rows[rows])
        numbers = torch.as_tensor(rows)
        if numbers.dtype == torch.bool:
            numbers = numbers.nonzero().flatten()
        return Sequences([self.rows[row] for row in numbers.tolist()])

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Sequences:
        whole = moved(torch.cat(self.rows), device, dtype)
        assert isinstance(whole, Tensor)
        return Sequences(whole.split([len(row) for row in self.rows]))

    def leaves(self) -> dict[str, Tensor]:
        """All steps of all rows, and how many are each row's."""
        return {"values": torch.cat(self.rows), "lengths": self.lengths()}

    def lengths(self) -> Tensor:
        """How many steps each row has."""
        return torch.tensor([len(row) for row in self.rows])

    def form(self) -> dict[str, Any]:
        return {"step": list(self.rows[0].shape[1:])}

    def padded(self) -> tuple[Tensor, Tensor]:
        """The rows as one tensor [rows, longest, ...], and where its steps are real."""
        values = pad_sequence(self.rows, batch_first=True)
        steps = torch.arange(values.shape[1], device=values.device)
        return values, steps < self.lengths().to(values.device)[:, None]

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The padded rows, and the keyword ``mask``."""
        values, mask = self.padded()
        return (values,), {"mask": mask}


class Padded(Composite):
    """Steps that are padded already, by name, and which of them are real: as a program has them.

    The one without a name is the network's positional argument.
    """

    def __init__(self, parts: Mapping[str, Tensor], mask: Tensor) -> None:
        self.parts, self.mask = dict(parts), mask

    def __len__(self) -> int:
        return len(self.mask)

    def __getitem__(self, rows: Any) -> Padded:
        return Padded({name: part[rows] for name, part in self.parts.items()}, self.mask[rows])

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Padded:
        return Padded(
            {
                name: part.to(device, dtype) if part.is_floating_point() else part.to(device)
                for name, part in self.parts.items()
            },
            self.mask.to(device),
        )

    def leaves(self) -> dict[str, Tensor]:
        return {**self.parts, "mask": self.mask}

    def form(self) -> dict[str, Any]:
        return {name: {"step": list(part.shape[2:])} for name, part in self.parts.items()}

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """As :class:`Sequences`, or :class:`Fields` of such, have them."""
        if "" in self.parts:
            return (self.parts[""],), {"mask": self.mask}
        masks = {f"{name}_mask": self.mask for name in self.parts}
        return (), {**self.parts, **masks}


def sequences(rows: Any, lengths: Any = None) -> Sequences:
    """Inputs of different lengths: a list of arrays, or one padded array and the rows' lengths.

    Each row has its steps along its first axis. A network is called as ``network(x, mask=mask)``:
    ``x`` is padded with zeros to the longest row of the batch, and ``mask`` is true where a step is
    real. As a value of a dict of inputs, they are the keywords ``NAME`` and ``NAME_mask``.

    >>> x, mask = sequences([[5, 7, 2], [4]]).padded()
    >>> x.tolist(), mask.tolist()
    ([[5, 7, 2], [4, 0, 0]], [[True, True, True], [True, False, False]])
    """
    if isinstance(rows, Sequences):
        return rows
    try:
        found = [torch.as_tensor(row) for row in rows]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"sequences: a row is no array of numbers: {error}") from error
    if lengths is not None:
        sizes = [int(size) for size in lengths]
        if len(sizes) != len(found):
            raise DataError(f"sequences: {len(found)} rows but {len(sizes)} lengths")
        found = [row[:size] for row, size in zip(found, sizes, strict=True)]
    steps = {tuple(row.shape[1:]) for row in found if row.ndim}
    if not found or any(row.ndim == 0 or len(row) == 0 for row in found):
        raise DataError("sequences: every row needs at least one step along its first axis")
    if len(steps) > 1:
        raise DataError(f"sequences: steps have different shapes {sorted(steps)}; give them one")
    kind = reduce(torch.promote_types, [row.dtype for row in found])
    if kind.is_complex:
        raise DataError("sequences: complex numbers; give real and imaginary part as two columns")
    if kind in (torch.uint8, torch.float16):
        kind = torch.float32
    kind = kind if kind.is_floating_point or kind == torch.bool else torch.int64
    return Sequences([row.detach().cpu().to(kind) for row in found])


def call(network: nn.Module, x: Inputs) -> Tensor:
    """What the network makes of the rows: named inputs are keyword arguments."""
    positional, named = call_arguments(x)
    output: Tensor = network(*positional, **named)
    return output


def call_arguments(x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    return ((x,), {}) if isinstance(x, Tensor) else x.arguments()


def leaves(x: Inputs) -> dict[str, Tensor]:
    """All numbers as tensors by name; those of one tensor have none."""
    return {"": x} if isinstance(x, Tensor) else x.leaves()


def row_form(x: Inputs) -> list[int] | dict[str, Any]:
    """What a row looks like, as plain data: a shape, or a table of fields."""
    return list(x.shape[1:]) if isinstance(x, Tensor) else x.form()


def has_sequences(x: Inputs) -> bool:
    parts = x.fields.values() if isinstance(x, Fields) else [x]
    return any(isinstance(part, Sequences) for part in parts)


def concatenated(parts: Sequence[Inputs]) -> Inputs:
    """The rows of all parts, which have one form."""
    first = parts[0]
    if isinstance(first, Fields):
        every = [part.fields for part in parts if isinstance(part, Fields)]
        return Fields({name: concatenated([own[name] for own in every]) for name in first.fields})
    if isinstance(first, Sequences):
        return Sequences(
            [row for part in parts if isinstance(part, Sequences) for row in part.rows]
        )
    return torch.cat([part for part in parts if isinstance(part, Tensor)])


def in_chunks(x: Inputs, rows: int) -> Iterator[Inputs]:
    return (x[start : start + rows] for start in range(0, len(x), rows))


def moved(part: Inputs, device: torch.device | str, dtype: torch.dtype) -> Inputs:
    if isinstance(part, Tensor):
        return part.to(device, dtype) if part.is_floating_point() else part.to(device)
    return part.to(device, dtype)
