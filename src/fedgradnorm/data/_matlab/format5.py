"""Cell arrays of numbers in MATLAB's file format 5 (``save -v6`` and ``save -v7``).

A file is a header of 128 bytes and a list of elements: a kind, a size in bytes, and that many
bytes, which may be compressed and may hold elements themselves. See MathWorks, *MAT-File Format*.
Only what data sets need is read: cells of plain real arrays. Nothing in the file is ever carried
out, and its sizes are checked before memory is taken.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._errors import DataError
from fedgradnorm._memory import check_memory
from fedgradnorm.data._files.read_rows import missing_name
from fedgradnorm.data._paths import is_file

Matrix = NDArray[np.float64]

LARGEST = 64 << 20
"""Bytes of a file, and of what a part of it unpacks to: the data sets read here have 1 MB."""

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_CELL, _NUMERIC = 1, range(6, 16)  # classes of arrays; the numeric ones are double .. uint64
_COMPLEX = 0x0800
_STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}


class _Damaged(Exception):
    """Bytes that are not what the format says; the text is the reason."""


@dataclass(frozen=True)
class _Array:
    """One array of the file, its content not looked at yet."""

    name: str
    kind: int
    shape: tuple[int, ...]
    is_complex: bool
    content: list[tuple[int, memoryview]]


def read_cells(path: Path, names: Sequence[str]) -> dict[str, list[Matrix]]:
    """The named cell arrays of a file, each as a list of tables of numbers."""
    content = memoryview(_content(path))
    try:
        order = _order(path, content)
        arrays = {array.name: array for array in _arrays(content[_HEADER:], order)}
        for name in names:
            if name not in arrays:
                raise missing_name(str(path), "variable", name, list(arrays))
        return {name: _cells(arrays[name], order) for name in names}
    except _Damaged as error:
        raise DataError(f"{path}: {error}; download the file again") from error


def _content(path: Path) -> bytes:
    if not is_file(path):
        raise DataError(f"{path}: no such file; check the path")
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise DataError(f"{path}: {size} bytes are too many for this data set; check the path")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file") from error


def _order(path: Path, content: memoryview) -> Literal["<", ">"]:
    """The order of bytes, which the end of the header tells."""
    if bytes(content[:8]) == b"\x89HDF\r\n\x1a\n" or b"MATLAB 7.3" in bytes(content[:16]):
        raise DataError(f"{path}: a MATLAB 7.3 file, which is not read; save it with -v7")
    mark = bytes(content[126:_HEADER])
    if mark not in (b"IM", b"MI"):
        raise _Damaged("not a MATLAB 5 file, or not all of its header")
    return "<" if mark == b"IM" else ">"


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """(kind, bytes) of each element; a short one has its bytes inside its tag."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise _Damaged(f"it ends inside the tag of an element, {len(data) - at} bytes are left")
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
            left, after = 4, at + 8
        else:
            start = at + 8
            left = len(data) - start
            # Compressed elements are not filled up to whole groups of eight bytes.
            after = start + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if size > left:
            raise _Damaged(f"it is cut off: an element of {size} bytes has {left} left")
        yield kind, data[start : start + size]
        at = after


def _arrays(data: memoryview, order: str) -> Iterator[_Array]:
    for kind, part in _elements(data, order):
        if kind == _COMPRESSED:
            yield from _arrays(_unpacked(part), order)
        elif kind == _MATRIX:
            yield _array(part, order)


def _unpacked(part: memoryview) -> memoryview:
    machine = zlib.decompressobj()
    try:
        content = machine.decompress(part, LARGEST)
    except zlib.error as error:
        raise _Damaged(f"a part of it cannot be unpacked ({error})") from error
    if not machine.eof:
        reason = "is too large" if len(content) >= LARGEST else "is cut off"
        raise _Damaged(f"a part of it {reason} after {len(content)} bytes unpacked")
    return memoryview(content)


def _array(part: memoryview, order: str) -> _Array:
    """An array's flags, shape and name, and what follows them."""
    elements = list(_elements(part, order))
    if len(elements) < 3 or len(elements[0][1]) != 8 or len(elements[1][1]) % 4:
        raise _Damaged("an array without flags, shape and name")
    (flags,) = struct.unpack_from(f"{order}I", elements[0][1])
    shape = tuple(np.frombuffer(elements[1][1], f"{order}i4").tolist())
    name = bytes(elements[2][1]).decode("ascii", "replace")
    return _Array(name, flags & 0xFF, shape, bool(flags & _COMPLEX), elements[3:])


def _cells(array: _Array, order: str) -> list[Matrix]:
    name = array.name
    if array.kind != _CELL:
        raise _Damaged(f"variable {name!r} is not a cell array")
    if math.prod(array.shape) != len(array.content):
        raise _Damaged(f"{name!r} has {len(array.content)} cells, its shape is {array.shape}")
    cells = []
    for number, (kind, part) in enumerate(array.content, start=1):
        if kind != _MATRIX:
            raise _Damaged(f"{name}{{{number}}} is not an array")
        cells.append(_numbers(_array(part, order), f"{name}{{{number}}}", order))
    return cells


def _numbers(array: _Array, where: str, order: str) -> Matrix:
    """The numbers of an array, which lie in the file column by column."""
    if array.kind not in _NUMERIC or array.is_complex or len(array.shape) != 2:
        raise _Damaged(f"{where} is not a table of real numbers")
    if len(array.content) != 1 or array.content[0][0] not in _STORED:
        raise _Damaged(f"{where} has no numbers")
    kind, part = array.content[0]
    stored = np.dtype(f"{order}{_STORED[kind]}")
    count = math.prod(array.shape)
    if min(array.shape) < 0 or count * stored.itemsize != len(part):
        raise _Damaged(f"{where} has {len(part)} bytes of numbers, its shape is {array.shape}")
    check_memory(8 * count, where, DataError)
    values = np.frombuffer(part, stored).astype(np.float64)
    return np.ascontiguousarray(values.reshape(array.shape, order="F"))
