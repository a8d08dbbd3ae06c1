"""What would not fit in memory, or lies in another file, is refused before it is taken."""

from __future__ import annotations

import io
import resource
import time
import warnings
import zipfile

import h5py
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from data.small_tables import client_from_files, one_line, write
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._memory import memory_limit
from fedgradnorm.data import Table, Target, faces, radcom
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._files import images
from fedgradnorm.data._files.tables import read_table
from fedgradnorm.data._sources import load_clients
from fedgradnorm.data.radcom._file import read

KEY = "('ask', 'short-range', 0, {})"


@pytest.fixture
def one_megabyte(monkeypatch):
    monkeypatch.setenv("FEDGRADNORM_MEMORY", "0.001")


@pytest.fixture
def nothing_taken():
    """The test's own share of the process's largest size is small."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64_000  # KB


@pytest.mark.parametrize("samples", [10**9, 10**12, 2**63 - 1, 10**400])
@pytest.mark.parametrize("source", ["radcom", "faces"])
def test_more_samples_than_memory_are_refused_at_once(source, samples, nothing_taken):
    with pytest.raises(
        ConfigError, match=rf"{source}: samples = {samples}.* needs \d+ GB"
    ) as error:
        load_clients(source, {"samples": samples}, seed=0)
    assert "FEDGRADNORM_MEMORY" in one_line(error)
    make = {"radcom": radcom.generate, "faces": faces.generate}[source]
    with pytest.raises(ConfigError, match=rf"{source}: samples = {samples} needs"):
        make(samples)


def test_the_test_faces_count_too(nothing_taken):
    with pytest.raises(ConfigError, match=r"samples = 100 and test_samples = 1000000000 needs"):
        load_clients("faces", {"samples": 100, "test_samples": 10**9}, seed=0)


def test_the_limit_is_the_machines_unless_it_is_set(monkeypatch):
    monkeypatch.delenv("FEDGRADNORM_MEMORY", raising=False)
    assert memory_limit() > 10**8
    monkeypatch.setenv("FEDGRADNORM_MEMORY", "0.5")
    assert memory_limit() == 500_000_000
    for wrong in ("much", "inf", "nan", ""):
        monkeypatch.setenv("FEDGRADNORM_MEMORY", wrong)
        with pytest.raises(ConfigError, match="FEDGRADNORM_MEMORY must be a number of gigabytes"):
            memory_limit()


@pytest.mark.parametrize("samples", [2.5, "many", True, None, 0, -1])
def test_samples_are_a_whole_number(samples):
    for make in (radcom.generate, faces.generate):
        with pytest.raises(ConfigError, match="samples must be a whole number from 1 on"):
            make(samples)


def zip_bomb(path):
    """An archive of a few hundred KB whose array ``x`` is 128 MB of zeros."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2, 2**23)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("x.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(128):
                member.write(bytes(2**20))
        file.writestr("y.npy", npy([0, 1]))
    return path


def npy(values):
    content = io.BytesIO()
    np.save(content, np.array(values))
    return content.getvalue()


def test_a_zip_bomb_is_refused_by_its_directory(tmp_path, monkeypatch, nothing_taken):
    path = zip_bomb(tmp_path / "a.npz")
    assert path.stat().st_size < 2**18
    monkeypatch.setenv("FEDGRADNORM_MEMORY", "0.2")
    with pytest.raises(DataError, match=r"a\.npz: unpacked, it needs 268 MB of memory") as caught:
        client_from_files("a", task="classification", train=path)
    one_line(caught)


def test_no_more_is_unpacked_than_the_directory_says(tmp_path, nothing_taken):
    """A directory that lies about a member's size does not open the way to a bomb."""
    path = zip_bomb(tmp_path / "a.npz")
    with zipfile.ZipFile(path) as file:
        true = file.getinfo("x.npy").file_size
    data = path.read_bytes()
    assert true.to_bytes(4, "little") in data
    path.write_bytes(data.replace(true.to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    with pytest.raises(DataError, match=r"a\.npz"):
        client_from_files("a", task="classification", train=path)


def test_other_arrays_of_an_archive_do_not_count(tmp_path, one_megabyte):
    rest = np.zeros((1000, 1000))
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(6.0), y=[0, 1] * 3, rest=rest)
    assert client_from_files("a", task="classification", train=tmp_path / "a.npz").client.size == 6
    with pytest.raises(DataError, match="unpacked, it needs 16 MB"):
        client_from_files("a", task="regression", train=tmp_path / "a.npz", x_key="rest")


def test_a_parquet_file_that_unpacks_to_more_than_memory(tmp_path, one_megabyte):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"x": np.zeros(200_000), "y": np.zeros(200_000)}).to_parquet(path)
    with pytest.raises(DataError, match=r"a\.parquet: unpacked, it needs 16 MB") as caught:
        client_from_files("a", task="regression", train=path, targets="y")
    one_line(caught)


def test_images_that_would_not_fit(tmp_path, one_megabyte):
    path = write(tmp_path / "a.csv", "path,y\n" + "a.png,1\n" * 100)
    with pytest.raises(DataError, match=r"100 images of size=400 needs 80 MB"):
        client_from_files(
            "a", task="regression", train=path, targets="y", images=tmp_path, size=400
        )


def test_a_picture_of_too_many_pixels_is_refused(monkeypatch):
    content = io.BytesIO()
    Image.new("L", (100, 90)).save(content, "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8_999)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as outside of tests, where Pillow's warning is no error
        with pytest.raises(ValueError, match="100x90 pixels, more than 8999"):
            images.decode_grey(content.getvalue())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9_000)
    assert images.decode_grey(content.getvalue()).size == (100, 90)


def test_numbers_in_other_files_are_not_read(tmp_path):
    """External storage and virtual datasets read whatever file of this machine they name."""
    (tmp_path / "secret").write_bytes(np.ones(256, "<f4").tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other.create_dataset("numbers", data=np.ones(256, "f4"))
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset(KEY.format(0), data=np.zeros(256, "f4"))
        outside = [(str(tmp_path / "secret"), 0, 1024)]
        file.create_dataset(KEY.format(1), (256,), "f4", external=outside)
        layout = h5py.VirtualLayout((256,), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "numbers", (256,))
        file.create_virtual_dataset(KEY.format(2), layout)
        file[KEY.format(3)] = h5py.ExternalLink("other.h5", "numbers")
    data = read(tmp_path / "f.h5", on_bad="drop")
    assert data.iq.tolist() == [[0.0] * 256]
    assert ["another file" in line for line in data.dropped] == [True, True, False]
    with pytest.raises(DataError, match="its numbers are in another file; copy them"):
        read(tmp_path / "f.h5")


def test_a_chunk_larger_than_its_dataset_is_not_unpacked(tmp_path):
    """A megabyte of zeros, compressed, is a gigabyte: a chunk may be larger than what it holds."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset(
            KEY.format(0), (256,), "f4", maxshape=(None,), chunks=(1 << 20,), compression="gzip",
            data=np.zeros(256),
        )  # fmt: skip
    with pytest.raises(DataError, match=r"chunks of 1048576 numbers, more than 65536"):
        read(tmp_path / "f.h5")


@pytest.mark.parametrize("start", [b"", b"a,y\n1,2\n"])
def test_a_table_with_a_hole_is_not_read_as_one_line(tmp_path, start):
    """A hole takes nothing of the disk, however large it is, and has no ends of lines."""
    with (tmp_path / "a.csv").open("wb") as file:
        file.write(start)
        file.truncate(1 << 30)
    with pytest.raises(DataError, match=r"a\.csv, line \d: not a text file"):
        Table(tmp_path / "a.csv", Target("y", "regression")).client("a")


def test_many_columns_take_linear_time(tmp_path):
    names = ",".join(f"c{i}" for i in range(20_000))
    (tmp_path / "a.csv").write_text(f"{names},y\n{'1,' * 20_000}2\n")
    begin = time.process_time()
    table = read_table(tmp_path / "a.csv", None, BadRows("error"))
    assert table.frame.shape == (1, 20_001)
    assert time.process_time() - begin < 3  # 10 s where each name was looked for among all
