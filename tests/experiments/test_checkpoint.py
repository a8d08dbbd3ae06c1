"""A checkpoint holds a nested dict exactly, or is not there at all."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import toys
from fedgradnorm import RunFolderError
from fedgradnorm._runs import checkpoint

KINDS = [
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]
STATE = {
    "tensors": {
        "double": torch.tensor([1 / 3, -0.0, math.pi], dtype=torch.float64),
        "half": torch.ones(2, 3, dtype=torch.bfloat16),
        "whole": torch.arange(4),
        "truth": torch.tensor([True, False]),
        "one": torch.tensor(2.5),
        "none of it": torch.empty(0, 3),
        "view": torch.arange(6.0).reshape(2, 3).T,
    },
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"params": [0]}]},
    "plain": [None, True, 0, -(2**60), 0.1, 1e-300, "text", ("a", 1), [], {}, ()],
    "dots.and/slashes": {"": "empty key", 7: "whole key"},
}


def test_a_nested_state_comes_back_exactly(tmp_path: Path) -> None:
    checkpoint.save(STATE, tmp_path / "state")
    assert toys.same(checkpoint.load(tmp_path / "state"), STATE)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(state=st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_plain_values_keep_their_kind(tmp_path: Path, state: dict) -> None:
    checkpoint.save(state, tmp_path / "state")
    assert repr(checkpoint.load(tmp_path / "state")) == repr(state)


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    checkpoint.save({"values": [math.inf, -math.inf, math.nan]}, tmp_path / "state")
    assert repr(checkpoint.load(tmp_path / "state")["values"]) == "[inf, -inf, nan]"


def test_what_cannot_be_written_as_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a checkpoint cannot hold object"):
        checkpoint.save({"a": object()}, tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_tensors_lie_as_safetensors_itself_puts_them(tmp_path: Path) -> None:
    tensors = {f"{k % 7}.{k}": torch.ones(k % 3, 2).to(kind) for k, kind in enumerate(KINDS * 3)}
    checkpoint.write_tensors(tmp_path / "ours", tensors, "a note")
    theirs = safetensors.torch.save(tensors)
    (ours, text), (header, body) = map(_parted, ((tmp_path / "ours").read_bytes(), theirs))
    assert ours.pop("__metadata__")["note"] == "a note"
    assert list(ours.items()) == list(header.items())
    assert text == body


def _parted(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


@pytest.mark.parametrize("step", ["fsync", "replace", "write"])
def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "state"
    checkpoint.write_atomically(path, b"before")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    data: bytes = b"after"
    if step == "write":
        data = memoryview(b"abcdef")[::2]  # not contiguous: write() itself refuses it
    else:
        monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[step], fail)
    with pytest.raises((OSError, BufferError, ValueError)):
        checkpoint.write_atomically(path, data)
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_a_write_is_durable_before_it_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: order.append("fsync") or fsync(fd))
    monkeypatch.setattr(Path, "replace", lambda *a: order.append("replace") or replace(*a))
    checkpoint.write_atomically(tmp_path / "state", b"data")
    assert order == ["fsync", "replace", "fsync"]  # the file, its new name, the folder


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_a_cut_file_is_named_as_damaged(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "state"
    checkpoint.save(STATE, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RunFolderError, match="state is damaged"):
        checkpoint.load(path)


@pytest.mark.parametrize("note", ["", "{", "null", '["dict", [["a", ["tensor", "9"]]]]', '["x"]'])
def test_a_foreign_file_is_named_as_foreign(tmp_path: Path, note: str) -> None:
    checkpoint.write_tensors(tmp_path / "state", {"0": torch.ones(1)}, note)
    with pytest.raises(RunFolderError, match="no checkpoint of this library"):
        checkpoint.load(tmp_path / "state")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no such file"):
        checkpoint.load(tmp_path / "state")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "state")
    with pytest.raises(RunFolderError, match="damaged"):
        checkpoint.load(tmp_path / "state")
