"""Data files from elsewhere: they keep the memory limit, read no other file, start no program."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
from PIL import Image

import fedgradnorm as fgn
from data.small_tables import client_from_files

GIGABYTE = 10**9


@pytest.fixture(autouse=True)
def ten_megabytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDGRADNORM_MEMORY", "0.01")
    monkeypatch.setenv("FEDGRADNORM_CACHE", str(tmp_path / "cache"))


def streamed(path: Path, **options: Any) -> fgn.Client:
    given: dict[str, Any] = {"task": "regression", "stream": True, **options}
    return client_from_files("a", train=path, **given).client


def npy(values: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, np.asarray(values))
    return content.getvalue()


@pytest.mark.parametrize("order", [("x", "x.npy"), ("x.npy", "x")])
def test_two_members_of_one_name_are_refused(tmp_path: Path, order: tuple[str, str]) -> None:
    """NumPy reads one of them, and the size of the other was compared with the limit."""
    parts = {"x.npy": npy(np.zeros((2, 1))), "x": npy(np.zeros((2, 10**6)))}
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for name in order:
            file.writestr(name, parts[name])
        file.writestr("y.npy", npy([0.0, 1.0]))
    with pytest.raises(fgn.DataError, match=r"two members .*'x'.*numpy\.savez"):
        client_from_files("a", task="regression", train=tmp_path / "a.npz")


def sparse_npy(path: Path, shape: tuple[int, ...]) -> Path:
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        os.truncate(path, file.tell() + 8 * int(np.prod(shape)))
    return path


def test_sparse_npy_files_count(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 1)))
    sparse_npy(tmp_path / "y.npy", (GIGABYTE,))
    with pytest.raises(fgn.DataError, match=r"y\.npy, read at once, needs 8 GB"):
        streamed(tmp_path)
    np.save(tmp_path / "y.npy", np.zeros(2))
    sparse_npy(tmp_path / "x.npy", (2, 2 * GIGABYTE))
    with pytest.raises(fgn.DataError, match=r"x\.npy: 1 row of it needs 16 GB"):
        streamed(tmp_path)


def test_streamed_parquet_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame({"x": np.zeros(10**6), "y": np.zeros(10**6)}).to_parquet(path)
    assert path.stat().st_size < 20_000
    with pytest.raises(fgn.DataError, match=r"a\.parquet: its targets, unpacked, together needs"):
        streamed(path, targets="y")
    monkeypatch.setenv("FEDGRADNORM_MEMORY", "1")
    monkeypatch.setattr("shutil.disk_usage", lambda _: (10**9, 10**9, 10**6))
    with pytest.raises(fgn.DataError, match=r"a\.parquet: .* take 8 MB, .*FEDGRADNORM_CACHE"):
        streamed(path, targets="y")


@pytest.mark.parametrize("lazy", [True, False])
def test_a_long_text_that_a_parquet_file_repeats_counts_once(tmp_path: Path, lazy: bool) -> None:
    """A dictionary holds it once; every row as a text of its own would be 100 MB."""
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"x": np.zeros(2_000), "y": ["a", "b" * 10**5] * 1_000})
    frame.to_parquet(path, row_group_size=100)
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(pool)
    try:
        given: dict[str, Any] = {"targets": "y", "stream": lazy}
        client = client_from_files("a", task="classification", train=path, **given).client
    finally:
        pyarrow.set_memory_pool(before)
    assert client.size == 2_000
    assert 0 < pool.max_memory() < 30 * 10**6


def damaged(path: Path, content: bytes, at: int) -> None:
    path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])


def read_all(client: fgn.Client) -> None:
    for start in range(0, client.size, 8):
        client.train[0][start : start + 8]


def one_of_ours(train: Callable[[], fgn.Client]) -> str | None:
    try:
        read_all(train())
    except fgn.FedGradNormError as error:
        return str(error)
    return None


@pytest.mark.slow
def test_damaged_streamed_files_raise_our_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "y.npy", np.zeros(32))
    content = npy(rng.normal(size=(32, 3)))
    for at in range(128):
        damaged(tmp_path / "x.npy", content, at)
        one_of_ours(lambda: streamed(tmp_path))


def test_a_postscript_file_named_png_is_not_given_to_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", "EPS")
    (tmp_path / "a.csv").write_text("path,y\na.png,1\na.png,2\n")

    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr("subprocess.Popen.__init__", started)
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", started)
    with pytest.raises(fgn.DataError, match=r"'a\.png' cannot be read") as caught:
        client_from_files(
            "a", task="regression", train=tmp_path / "a.csv", targets="y", images=tmp_path
        )
    assert "a program was started" not in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_usual_images_are_read(tmp_path: Path, kind: str) -> None:
    Image.new("RGB", (8, 8), (255, 255, 255)).save(tmp_path / "a", kind)
    (tmp_path / "a.csv").write_text("path,y\na,1\na,2\n")
    client = client_from_files(
        "a", task="regression", train=tmp_path / "a.csv", targets="y", images=tmp_path, size=4
    ).client
    assert float(client.train[0].min()) == 1


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def test_lists_of_methods_and_reasons_take_linear_time() -> None:
    """Both took minutes for a text of a few hundred KB."""
    from fedgradnorm.data._bad_rows import summed_up  # no public way is as direct
    from fedgradnorm.experiments._variants import split_entries

    assert seconds(lambda: split_entries("a," * 200_000)) < 2
    assert seconds(lambda: split_entries("[" * 1_000_000)) < 4
    assert seconds(lambda: summed_up(["x" * 200_000])) < 2
    assert seconds(lambda: summed_up(["'" + "\\'" * 100_000])) < 2
