import json
import logging
import multiprocessing
import os
import time

import numpy as np
import pytest

from fedgradnorm._errors import DataError
from fedgradnorm.data._cache import cached, default_folder, fingerprint

KEY = {"source": "abc", "size": 40}


def build():
    arrays = {"x": np.arange(12, dtype=np.uint8).reshape(3, 4), "names": np.array(["a", "bc"])}
    return arrays, {"rows": 3, "why": ["because"]}


def refuse():
    raise AssertionError("a sound entry must not be built again")


def same(prepared):
    expected, info = build()
    assert prepared.info == info
    assert prepared.arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(prepared.arrays[name], array)
        assert prepared.arrays[name].dtype == array.dtype


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_built_once_then_mapped(tmp_path):
    first = cached("kind", KEY, build, folder=tmp_path)
    second = cached("kind", KEY, refuse, folder=tmp_path)
    assert first.fresh
    assert not second.fresh
    same(first)
    same(second)
    assert isinstance(second.arrays["x"].base, np.memmap)
    assert not second.arrays["x"].flags.writeable
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("other", [{"source": "abd", "size": 40}, {"source": "abc", "size": 41}])
def test_another_key_is_another_entry(tmp_path, other):
    cached("kind", KEY, build, folder=tmp_path)
    assert cached("kind", other, build, folder=tmp_path).fresh
    assert cached("kinds", KEY, build, folder=tmp_path).fresh


def test_key_order_does_not_matter(tmp_path):
    cached("kind", KEY, build, folder=tmp_path)
    assert not cached("kind", dict(reversed(KEY.items())), refuse, folder=tmp_path).fresh


def test_empty_arrays_are_kept(tmp_path):
    for _ in range(2):
        prepared = cached("k", KEY, lambda: ({"x": np.empty((0, 4))}, {}), folder=tmp_path)
        assert prepared.arrays["x"].shape == (0, 4)


def remove_array(entry):
    (entry / "x.npy").unlink()


def cut_array(entry):
    content = (entry / "x.npy").read_bytes()
    (entry / "x.npy").write_bytes(content[:-5])


def change_array(entry):
    content = (entry / "x.npy").read_bytes()
    (entry / "x.npy").write_bytes(content[:-1] + b"\xff")


def remove_manifest(entry):
    (entry / "manifest.json").unlink()


def cut_manifest(entry):
    content = (entry / "manifest.json").read_bytes()
    (entry / "manifest.json").write_bytes(content[: len(content) // 2])


def empty_manifest(entry):
    (entry / "manifest.json").write_text("[]")


def change_info(entry):
    manifest = json.loads((entry / "manifest.json").read_text())
    manifest["body"]["info"]["rows"] = 4
    (entry / "manifest.json").write_text(json.dumps(manifest))


def a_file_instead(entry):
    for path in entry.iterdir():
        path.unlink()
    entry.rmdir()
    entry.write_text("what")


@pytest.mark.parametrize(
    "damage",
    [
        remove_array,
        cut_array,
        change_array,
        remove_manifest,
        cut_manifest,
        empty_manifest,
        change_info,
        a_file_instead,
    ],
)
def test_damage_is_noticed_logged_and_repaired(tmp_path, caplog, damage):
    entry = cached("kind", KEY, build, folder=tmp_path).folder
    damage(entry)
    with caplog.at_level(logging.WARNING):
        repaired = cached("kind", KEY, build, folder=tmp_path)
    assert repaired.fresh
    assert "damaged cache" in caplog.text
    same(repaired)
    same(cached("kind", KEY, refuse, folder=tmp_path))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_when_building_fails(tmp_path, error):
    def fail():
        raise error("no")

    with pytest.raises(error):
        cached("kind", KEY, fail, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_writing_fails(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"No space left.*FEDGRADNORM_CACHE"):
        cached("kind", KEY, build, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_cannot_be_named_says_why(tmp_path, monkeypatch):
    def refuse(self, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    with pytest.raises(DataError, match=r"cannot be written \(.*Operation not permitted"):
        cached("kind", KEY, build, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_cleared_after_a_day(tmp_path):
    old, young = tmp_path / ".kind-old-1", tmp_path / ".kind-young-1"
    old.mkdir()
    young.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    cached("kind", KEY, build, folder=tmp_path)
    assert leftovers(tmp_path) == [young.name]


def test_another_process_that_finishes_first_wins(tmp_path):
    def slow():
        cached("kind", KEY, build, folder=tmp_path)  # meanwhile, elsewhere
        return build()

    same(cached("kind", KEY, slow, folder=tmp_path))
    same(cached("kind", KEY, refuse, folder=tmp_path))
    assert leftovers(tmp_path) == []


def _race(folder, barrier, results):
    try:
        barrier.wait(timeout=120)
        for index in range(15):
            prepared = cached("kind", {"n": index}, build, folder=folder)
            same(prepared)
        results.put("ok")
    except BaseException as error:
        results.put(repr(error))


@pytest.mark.slow
def test_two_processes_building_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_race, args=(tmp_path, barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    answers = [results.get(timeout=240) for _ in workers]
    for worker in workers:
        worker.join(timeout=30)
    results.close()
    assert answers == ["ok", "ok"]
    assert leftovers(tmp_path) == []


def test_folder_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRADNORM_CACHE", str(tmp_path / "deep" / "er"))
    assert default_folder() == tmp_path / "deep" / "er"
    assert cached("kind", KEY, build).folder.parent == tmp_path / "deep" / "er"
    monkeypatch.delenv("FEDGRADNORM_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "fedgradnorm"


@pytest.mark.parametrize("size", [0, 1000, 20 << 20])
def test_fingerprint_sees_size_head_and_tail(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    seen = {fingerprint(path)}
    assert fingerprint(path) in seen
    path.write_bytes(bytes(size + 1))
    seen.add(fingerprint(path))
    for place in (0, -1):
        content = bytearray(size + 1)
        content[place] = 1
        path.write_bytes(content)
        seen.add(fingerprint(path))
    assert len(seen) == (4 if size else 3)


def test_fingerprint_of_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        fingerprint(tmp_path / "missing")
