"""MATLAB files: as SciPy writes them, and damaged or dangerous ones in one line."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.io import savemat

import fedgradnorm as fgn
from cell_files import cell, school_tables, write_landmine, write_school
from fedgradnorm.data import landmine, school

KINDS = ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]


def rows(clients):
    return [c.size + len(c.test[0]) for c in clients]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_every_kind_are_read(tmp_path, kind, compressed):
    x, y = ([table.astype(kind) for table in tables] for tables in school_tables())
    file = write_school(tmp_path / "a.mat", x, y, do_compression=compressed)
    usual = school.clients(source=write_school(tmp_path / "b.mat"))
    for one, two in zip(school.clients(source=file), usual, strict=True):
        assert one.fingerprint() == two.fingerprint()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_anywhere_is_refused(tmp_path, compressed):
    whole = write_school(tmp_path / "school.mat", do_compression=compressed).read_bytes()
    file = tmp_path / "cut.mat"
    for end in [0, 1, 100, 128, *range(130, len(whole), max(1, len(whole) // 60))]:
        file.write_bytes(whole[:end])
        with pytest.raises(fgn.DataError, match=r"cut\.mat: ") as error:
            school.clients(source=file)
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
            assert rows(landmine.clients(source=file))
        except fgn.DataError as error:
            assert str(file) in str(error) or "client 'field" in str(error)  # noqa: PT017


def test_what_is_not_read_says_why(tmp_path):
    file = tmp_path / "a.mat"
    file.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(200))
    with pytest.raises(fgn.DataError, match="save it with -v7"):
        school.clients(source=file)
    savemat(file, {"x": cell([np.ones((2, 2))]), "Y": cell([np.ones((2, 1))])})
    with pytest.raises(fgn.DataError, match="no variable 'X'"):
        school.clients(source=file)
    for content, why in [
        (np.ones((2, 2)), "not a cell array"),
        (cell([np.ones((2, 2)) * 1j]), r"X\{1\} is not a table of real numbers"),
        (cell([np.ones((2, 2)), "text"]), r"X\{2\} is not a table of real numbers"),
        (cell([cell([np.ones((2, 2))])]), r"X\{1\} is not a table of real numbers"),
        ({"a": 1}, "table of real numbers|not a cell array"),
    ]:
        savemat(file, {"X": content, "Y": cell([np.ones((2, 1))])})
        with pytest.raises(fgn.DataError, match=why):
            school.clients(source=file)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    file = tmp_path / "bomb.mat"
    savemat(file, {"X": cell([np.zeros((400_000, 28))])}, do_compression=True)
    assert file.stat().st_size < 1_000_000
    with pytest.raises(fgn.DataError, match="too large, 67108864 bytes unpacked"):
        school.clients(source=file)
