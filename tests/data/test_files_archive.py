"""Files inside a zip archive, and files in the folder that FEDGRADNORM_DATA names."""

from __future__ import annotations

import zipfile

import numpy as np
import pandas as pd
import pytest

import fedgradnorm as fgn
from data.small_tables import HOUSES, client_from_files, one_line, prices


@pytest.fixture
def archive(tmp_path):
    frame = pd.DataFrame({"area": [50.0, 80], "rooms": [2.0, 3], "price": [1.0, 2]})
    frame.to_parquet(tmp_path / "houses.parquet")
    np.savez(tmp_path / "houses.npz", x=np.ones((3, 2)), y=np.arange(3.0))
    with zipfile.ZipFile(tmp_path / "All.ZIP", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("inside/houses.csv", HOUSES)
        for end in ("parquet", "npz"):
            file.write(tmp_path / f"houses.{end}", f"houses.{end}")
    return tmp_path / "All.ZIP"


def test_a_file_in_an_archive_is_as_good_as_one_on_disk(archive, tmp_path):
    (tmp_path / "houses.csv").write_text(HOUSES)
    inside, outside = prices(archive / "inside/houses.csv"), prices(tmp_path / "houses.csv")
    assert inside.client.fingerprint() == outside.client.fingerprint()
    assert prices(archive / "houses.parquet").client.size == 2
    loaded = client_from_files("a", task="regression", train=archive / "houses.npz")
    assert loaded.client.size == 3


def test_what_an_archive_does_not_have_is_named(archive, tmp_path):
    with pytest.raises(fgn.DataError, match=r"All.ZIP: no file 'houses.csv'.* \(it has: ") as one:
        prices(archive / "houses.csv")
    one_line(one)
    with pytest.raises(fgn.DataError, match=r"no file '\.\./\.\./etc/x\.csv'"):
        prices(archive / "../../etc/x.csv")
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) // 2])
    with pytest.raises(fgn.DataError, match=r"inside/houses.csv: cannot be read .*check the arch"):
        prices(archive / "inside/houses.csv")


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(archive, monkeypatch):
    monkeypatch.setenv("FEDGRADNORM_MEMORY", "0.000001")
    with pytest.raises(fgn.DataError, match=r"inside/houses.csv: unpacked, it"):
        prices(archive / "inside/houses.csv")


def test_files_are_also_looked_for_in_the_data_folder(archive, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("FEDGRADNORM_DATA", str(tmp_path))
    for name in ("All.ZIP/inside/houses.csv", "houses.parquet"):
        assert prices(name, base=elsewhere).client.size
    (elsewhere / "houses.csv").write_text(HOUSES.replace("120", "121"))
    (tmp_path / "houses.csv").write_text(HOUSES)
    assert prices("houses.csv", base=elsewhere).client.train[0][3, 0] == 121
    with pytest.raises(fgn.DataError, match=r"elsewhere/nothing.csv: no such file"):
        prices("nothing.csv", base=elsewhere)
