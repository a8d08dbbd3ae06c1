"""The table of a run: tidy, append-only, exact."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedgradnorm import RunFolderError
from fedgradnorm._runs.history import History, read_history

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
numbers = st.floats(allow_nan=False)
rows = st.fixed_dictionaries(
    {
        "round": st.integers(0, 10**6),
        "epoch": numbers,
        "client": names,
        "split": st.sampled_from(["batch", "train", "test"]),
    },
    optional={"loss": numbers, "weight": numbers, "active": st.integers(0, 1), "r2": numbers},
)


def row(round_number: int, **more) -> dict:
    return {"round": round_number, "epoch": 0.5, "client": "a", "split": "batch", **more}


def attached(path: Path) -> History:
    history = History(["r2"])
    history.attach(path)
    return history


@given(written=st.lists(rows, max_size=6))
@example(written=[{"round": 1, "epoch": 1.0, "client": "a\rb", "split": "batch"}])
def test_every_digit_and_every_name_comes_back(tmp_path: Path, written: list[dict]) -> None:
    history = attached(tmp_path / "metrics.csv")
    history.append(written)
    history.close()
    assert read_history(tmp_path / "metrics.csv").rows == written
    assert read_history(tmp_path / "metrics.csv").columns == history.columns


def test_a_number_that_is_not_finite_comes_back(tmp_path: Path) -> None:
    history = attached(tmp_path / "metrics.csv")
    history.append([row(1, loss=math.inf, r2=math.nan)])
    history.close()
    back = read_history(tmp_path / "metrics.csv").rows[0]
    assert back["loss"] == math.inf
    assert math.isnan(back["r2"])


def test_the_file_is_the_text_of_the_table(tmp_path: Path) -> None:
    history = History(["accuracy"])
    history.append([row(0)])
    history.attach(tmp_path / "metrics.csv")
    history.append([row(1, accuracy=0.1, client='b, "c"')])
    assert (tmp_path / "metrics.csv").read_text() == history.text()
    history.close()


def test_going_on_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    history = attached(path)
    history.append([row(1, client="ü")])
    size, checksum = history.sync(), history.checksum
    expected = path.read_bytes()
    assert size == len(expected)
    history.append([row(2), row(3)])
    history.close()
    later = History(["r2"])
    later.reattach(path, size, checksum)
    assert [r["round"] for r in later.rows] == [1]
    later.append([row(2)])
    assert later.sync() == path.stat().st_size
    later.close()
    assert path.read_bytes().startswith(expected)
    assert [r["round"] for r in read_history(path).rows] == [1, 2]


def test_a_file_shorter_than_its_checkpoint_says_is_damaged(tmp_path: Path) -> None:
    history = attached(tmp_path / "metrics.csv")
    history.append([row(1)])
    size, checksum = history.sync(), history.checksum
    history.close()
    with pytest.raises(RunFolderError, match="shorter than its checkpoint says"):
        History(["r2"]).reattach(tmp_path / "metrics.csv", size + 1, checksum)


@pytest.mark.parametrize("torn", [b"2,0.5", "2,0.5,ü".encode()[:-1]])
def test_an_unfinished_last_line_is_left_out(tmp_path: Path, torn: bytes) -> None:
    history = attached(tmp_path / "metrics.csv")
    history.append([row(1)])
    history.close()
    with (tmp_path / "metrics.csv").open("ab") as file:
        file.write(torn)
    assert [r["round"] for r in read_history(tmp_path / "metrics.csv").rows] == [1]


@pytest.mark.parametrize("line", [b"x,0.5,a,batch\n", b"1,zero,a,batch\n", b"1,0.5,\xff,batch\n"])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    history = attached(tmp_path / "metrics.csv")
    history.close()
    with (tmp_path / "metrics.csv").open("ab") as file:
        file.write(line)
    with pytest.raises(RunFolderError, match=r"metrics\.csv.* is damaged"):
        read_history(tmp_path / "metrics.csv")


def test_the_frame_has_every_column_and_a_gap_where_nothing_was_measured() -> None:
    history = History(["accuracy", "mae"])
    history.append([row(1, loss=0.5), row(1, client="b", split="test", mae=2.0)])
    frame = history.frame()
    assert list(frame.columns) == list(history.columns)
    assert frame.mae.tolist()[1] == 2.0
    assert math.isnan(frame.mae[0])
