"""MATLAB's file format 5: as SciPy reads it, and damaged files in one line."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from cell_files import cell, school_tables, write_landmine, write_school
from fedgradnorm._errors import DataError
from fedgradnorm.data._matlab.format5 import _HEADER, read_cells

KINDS = ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_every_kind_are_those_that_scipy_reads(tmp_path, kind, compressed):
    tables = [np.arange(6).reshape(shape).astype(kind) for shape in ((2, 3), (6, 1), (1, 6))]
    file = tmp_path / "a.mat"
    savemat(file, {"X": cell(tables), "other": np.ones((2, 2))}, do_compression=compressed)
    read = read_cells(file, ["X"])["X"]
    for table, again, expected in zip(tables, read, loadmat(file)["X"][0], strict=True):
        assert again.dtype == np.float64
        assert np.array_equal(again, table)
        assert np.array_equal(again, expected)


def test_files_of_the_other_byte_order_are_read(tmp_path):
    def element(kind, data):
        return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8)

    def array(kind, shape, name, *content):
        flags = element(6, struct.pack(">II", kind, 0)) + element(5, struct.pack(">ii", *shape))
        return element(14, flags + element(1, name) + b"".join(content))

    numbers = array(6, (2, 1), b"", element(9, struct.pack(">dd", 1.5, -2)))
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI"
    file = tmp_path / "big.mat"
    file.write_bytes(header + array(1, (1, 1), b"X", numbers))
    assert read_cells(file, ["X"])["X"][0].tolist() == [[1.5], [-2.0]]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_anywhere_is_refused(tmp_path, compressed):
    whole = write_school(tmp_path / "school.mat", do_compression=compressed).read_bytes()
    file = tmp_path / "cut.mat"
    for end in [0, 1, 100, _HEADER, *range(130, len(whole), max(1, len(whole) // 60))]:
        file.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"cut\.mat: ") as error:
            read_cells(file, ["X", "Y"])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("compressed", [False, True])
def test_flipped_bytes_are_read_or_refused(tmp_path, compressed):
    whole = write_landmine(tmp_path / "a.mat", do_compression=compressed).read_bytes()
    draw, file = random.Random(0), tmp_path / "b.mat"
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 2, 8))):
            content[draw.randrange(len(content))] = draw.randrange(256)
        file.write_bytes(content)
        try:
            assert all(len(cells) for cells in read_cells(file, ["feature", "label"]).values())
        except DataError as error:
            assert str(file) in str(error)  # noqa: PT017


def test_what_is_not_read_says_why(tmp_path):
    file = tmp_path / "a.mat"
    with pytest.raises(DataError, match="no such file"):
        read_cells(file, ["X"])
    file.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(200))
    with pytest.raises(DataError, match="save it with -v7"):
        read_cells(file, ["X"])
    savemat(file, {"x": cell([np.ones((2, 2))])})
    with pytest.raises(DataError, match="no variable 'X'"):
        read_cells(file, ["X"])
    for content, why in [
        (np.ones((2, 2)), "not a cell array"),
        (cell([np.ones((2, 2)) * 1j]), r"X\{1\} is not a table of real numbers"),
        (cell([np.ones((2, 2)), "text"]), r"X\{2\} is not a table of real numbers"),
        (cell([cell([np.ones((2, 2))])]), r"X\{1\} is not a table of real numbers"),
    ]:
        savemat(file, {"X": content})
        with pytest.raises(DataError, match=why):
            read_cells(file, ["X"])


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgradnorm.data._matlab.format5.LARGEST", 10_000)
    file = tmp_path / "bomb.mat"
    savemat(file, {"X": cell([np.zeros((1000, 28))])}, do_compression=True)
    with pytest.raises(DataError, match="too large after 10000 bytes"):
        read_cells(file, ["X"])
    savemat(file, {"X": cell(school_tables(30, 50)[0])})
    with pytest.raises(DataError, match="bytes are too many"):
        read_cells(file, ["X"])
