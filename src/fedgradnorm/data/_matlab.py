"""MATLAB files (``save -v6`` and ``-v7``), and clients from files with a cell for each client.

``scipy.io.loadmat`` is not used: a single damaged byte can make it crash the process, and checking
a file well enough to prevent that takes as many lines as reading it. See MathWorks, *MAT-File
Format*. Only plain real arrays and cells of them are read, and nothing in a file is ever run.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._client import Client
from fedgradnorm._errors import DataError
from fedgradnorm.data._arrays import How, chosen, client_from_arrays, scaled
from fedgradnorm.data._files.tables import missing_name, usable
from fedgradnorm.tasks._task import Task

Matrix = NDArray[np.float64]

LARGEST = 64 << 20
"""Bytes of a file, and of what a part of it unpacks to: the data sets read here have 1 MB."""

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_CELL, _NUMERIC = 1, range(6, 16)  # classes of arrays; the numeric ones are double .. uint64
_STORED: dict[int, str] = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip


def read_matlab(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """The named variables of a file: a table of float64 each, or for cells a list of tables."""
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path}: too large for this data set; check the path")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file") from error
    if content.startswith(b"\x89HDF") or b"MATLAB 7.3" in content[:16]:
        raise DataError(f"{path}: a MATLAB 7.3 file, which is not read; save it with -v7")
    try:
        if content[126:_HEADER] != b"IM":  # little-endian, as every current machine writes
            raise ValueError("no header of a MATLAB 5 file")
        arrays = dict(_variables(memoryview(content)[_HEADER:]))
        for name in names:
            if name not in arrays:
                raise missing_name(str(path), "variable", name, list(arrays))
        return {name: _values(name, arrays[name]) for name in names}
    except (ValueError, struct.error, zlib.error) as error:
        raise DataError(
            f"{path}: not a readable MATLAB file ({error}); download it again"
        ) from error


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(kind, bytes) of each element; a short one has its bytes inside its tag."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        start, end = at + 8, at + 8 + size
        at = end if kind == _COMPRESSED else start + -(-size // 8) * 8
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            start, end, at = start - 4, start - 4 + size, start
        if end > len(data):
            raise ValueError(f"cut off: an element of {size} bytes has {len(data) - start} left")
        yield kind, data[start:end]


def _variables(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """The arrays of a file by name; nothing inside them is looked at yet."""
    for kind, part in _elements(data):
        if kind == _COMPRESSED:
            machine = zlib.decompressobj()
            unpacked = machine.decompress(part, LARGEST)
            if not machine.eof:
                raise ValueError(f"a part is cut off or too large, {len(unpacked)} bytes unpacked")
            yield from _variables(memoryview(unpacked))
        elif kind == _MATRIX and part:
            _, _, (_, name), *_ = _elements(part)
            yield bytes(name).decode("ascii", "replace"), part


def _values(where: str, part: memoryview) -> Any:
    """An array: its flags, shape and name, and then its cells or numbers."""
    (_, flags), (_, shape), (_, _), *content = _elements(part)
    (flag,) = struct.unpack_from("<I", flags)
    sizes, kinds = np.frombuffer(shape, "<i4").tolist(), {kind for kind, _ in content}
    if flag & 0xFF == _CELL and kinds <= {_MATRIX} and math.prod(sizes) == len(content):
        empty, inside = np.zeros((0, 0)), list[Any]()
        for k, (_, own) in enumerate(content, 1):
            inside.append(_values(f"{where}{{{k}}}", own) if own else empty)
            if isinstance(inside[-1], list):
                raise ValueError(f"{where}{{{k}}} is not a table of real numbers")
        return inside
    numeric = flag & 0xFF in _NUMERIC and not flag & 0x0800  # complex
    if not numeric or len(sizes) != 2 or len(content) != 1 or content[0][0] not in _STORED:
        raise ValueError(f"{where} is not a table of real numbers")
    numbers = np.frombuffer(content[0][1], "<" + _STORED[content[0][0]])
    if min(sizes) < 0 or len(numbers) != math.prod(sizes):
        raise ValueError(f"{where} has {len(numbers)} numbers, its shape is {sizes}")
    return np.ascontiguousarray(numbers.astype(np.float64).reshape(sizes, order="F"))


def check_numbers(where: str, values: Matrix, good: NDArray[np.bool_], what: str) -> None:
    """A DataError that names the first number which is not ``what``."""
    if not good.all():
        row, column = np.argwhere(~good)[0]
        raise DataError(
            f"{where}, row {row + 1}, column {column + 1}: {values[row, column]} is not {what}; "
            "download the file again, or correct it"
        )


@dataclass(frozen=True)
class Cells:
    """What a file holds: which variables, how many inputs, and what a client and a target are."""

    inputs: str
    targets: str
    width: int
    unit: str
    classes: tuple[str, ...] | None = None

    def read(self, path: Path) -> list[tuple[Matrix, Matrix]]:
        """Inputs and targets of every client, in file order; a DataError names cell and row."""
        found = read_matlab(path, (self.inputs, self.targets))
        x, y = found[self.inputs], found[self.targets]
        for name, cells in found.items():
            if not isinstance(cells, list):
                raise DataError(f"{path}: variable {name!r} is not a cell array; check the file")
        if len(x) != len(y) or not x:
            raise DataError(
                f"{path}: {len(x)} cells of {self.inputs} and {len(y)} of {self.targets}; they "
                "must be as many, and at least one"
            )
        pairs = zip(x, y, strict=True)
        return [self._pair(path, number, *pair) for number, pair in enumerate(pairs, start=1)]

    def _pair(self, path: Path, number: int, x: Matrix, y: Matrix) -> tuple[Matrix, Matrix]:
        where = f"{path}, {self.inputs}{{{number}}}"
        if x.shape[1] != self.width:
            raise DataError(f"{where}: {x.shape[1]} columns, not {self.width}; check the file")
        if y.shape != (len(x), 1) or not len(x):
            raise DataError(
                f"{where}: {len(x)} rows, and {self.targets}{{{number}}} has shape {y.shape}; "
                "each row needs one target"
            )
        check_numbers(where, x, usable(x), "a finite number")
        classes = list(range(len(self.classes or ())))
        good = np.isin(y, classes) if classes else usable(y)
        what = f"one of {classes}" if classes else "a finite number"
        check_numbers(f"{path}, {self.targets}{{{number}}}", y, good, what)
        return x, y

    def clients(
        self, path: Path, task: Task, numbers: Sequence[int] | None, scaling: How, **options: Any
    ) -> list[Client]:
        """A client for each of ``numbers``, counted from 1 as MATLAB does; None means all."""
        cells, made = self.read(path), []
        for number in chosen(f"{self.unit}s", numbers, range(1, len(cells) + 1)):
            x, y = cells[number - 1]
            rows = x, y[:, 0].astype(np.float32)
            client = client_from_arrays(f"{self.unit}-{number}", task, rows, **options)
            made.append(replace(client, labels=self.classes))
        return scaled(made, scaling)
