"""A run that is refused leaves every file of its folder as it was."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedgradnorm as fgn
import flat
import toys
from experiments.small_config import small_config
from experiments.spoiling import snapshot, stop, toy_run
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.manifest import identity, read_manifest
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import execute

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run that was stopped after its second round, with rows after its checkpoint."""
    with pytest.raises(fgn.Interrupted):
        toy_run(tmp_path / "run", progress=stop)
    with (tmp_path / "run" / "metrics.csv").open("a") as table:
        table.write("3,3.0,side,batch\n")  # as a kill leaves them
    (tmp_path / "run" / ".checkpoint.safetensors.1.tmp").write_bytes(b"half")
    (tmp_path / "run" / PREVIOUS).unlink()  # a run continues from it where the last one is damaged
    return tmp_path / "run"


def changed_manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        manifest = json.loads((folder / "run.json").read_text())
        del manifest["checksum"]  # only its shape is checked then
        change(manifest)
        (folder / "run.json").write_text(json.dumps(manifest))

    return spoil


def reshaped(folder: Path) -> None:
    state = checkpoint.load(folder / CHECKPOINT)
    del state["trainer"]["recording"]
    checkpoint.save(state, folder / CHECKPOINT, identity(read_manifest(folder)))


def flipped(name: str, at: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 2
        (folder / name).write_bytes(data)

    return spoil


def replaced(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return spoil


SPOILED = {
    "settings lost": (changed_manifest(lambda a: a.pop("settings")), "has no settings"),
    "seed lost": (changed_manifest(lambda a: a["settings"].pop("seed")), "has no settings.seed"),
    "clients retyped": (
        changed_manifest(lambda a: a.update(clients=[])),
        "clients must be a table",
    ),
    "blueprints lost": (changed_manifest(lambda a: a.pop("blueprints")), "other network"),
    "checkpoint lost": (lambda f: (f / CHECKPOINT).unlink(), "has lost its checkpoint"),
    "checkpoint cut": (lambda f: os.truncate(f / CHECKPOINT, 900), "is damaged"),
    "checkpoint flipped": (flipped(CHECKPOINT, -9), "does not match its checksum"),
    "checkpoint reshaped": (reshaped, "its checkpoint does not fit: KeyError: 'recording'"),
    "table lost": (lambda f: (f / "metrics.csv").unlink(), "is shorter than"),
    "table flipped": (flipped("metrics.csv", 200), "not those that its checkpoint recorded"),
    "log a pipe": (replaced("log.txt", os.mkfifo), "not a regular file"),
    "table a folder": (replaced("metrics.csv", Path.mkdir), "Is a directory"),
    "run.json a pipe": (replaced("run.json", os.mkfifo), "not a regular file"),
    "lock elsewhere": (replaced(".lock", lambda p: p.symlink_to("/nowhere/at/all")), "be written"),
    "rows a file": (lambda f: (f / "rows").write_text(""), "rows is not a folder"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_run(begun: Path, what: str) -> None:
    spoil, message = SPOILED[what]
    spoil(begun)
    before = snapshot(begun)
    with pytest.raises(fgn.RunFolderError, match=message) as error:
        toy_run(begun, resume=True)
    assert "\n" not in str(error.value)
    assert snapshot(begun) == before


@pytest.mark.parametrize(
    "how",
    [{"lr": 0.5}, {"seed": 3}, {"weighting": fgn.Equal()}, {"rounds": 4}],
    ids=["lr", "seed", "weighting", "rounds"],
)
@pytest.mark.parametrize("lock", [True, False], ids=["lock", "no lock"])
def test_another_run(begun: Path, how: dict[str, Any], lock: bool) -> None:
    if not lock:
        (begun / ".lock").unlink()  # a copied folder may lack it
    before = snapshot(begun)
    with pytest.raises(fgn.RunFolderError, match="cannot resume with other"):
        toy_run(begun, resume=True, **how)
    assert snapshot(begun) == before
    assert toy_run(begun, resume=True).finished


def test_other_data(begun: Path) -> None:
    before = snapshot(begun)
    first, *rest = toys.clients()[1:]
    other = [dataclasses.replace(first, train=(first.train[0] + 1, first.train[1])), *rest]
    how = {"rounds": 3, "eval_every": 0, "checkpoint_every": 1}
    with pytest.raises(fgn.RunFolderError, match="other data"):
        flat.train(toys.noisy_network(), other, folder=begun, resume=True, **how)
    assert snapshot(begun) == before


def test_a_second_start(begun: Path) -> None:
    before = snapshot(begun)
    with pytest.raises(fgn.RunFolderError, match="already holds a run"):
        toy_run(begun)
    assert snapshot(begun) == before


def test_a_config_run(tmp_path: Path) -> None:
    config = load_config(small_config(tmp_path))
    with pytest.raises(fgn.Interrupted):
        execute(config, tmp_path / "run", progress=stop)
    for name in (CHECKPOINT, PREVIOUS):
        (tmp_path / "run" / name).unlink()
    before = snapshot(tmp_path / "run")
    with pytest.raises(fgn.RunFolderError, match="has lost its checkpoint"):
        execute(config, tmp_path / "run", resume=True)
    with pytest.raises(fgn.RunFolderError, match="already holds a run"):
        execute(config, tmp_path / "run")
    assert snapshot(tmp_path / "run") == before


@pytest.mark.parametrize("finished", [True, False])
def test_a_saved_run_has_no_checkpoint_to_go_on_from(tmp_path: Path, finished: bool) -> None:
    run = toy_run(tmp_path / "run")
    run.finished = finished
    folder = run.save(tmp_path / "saved")
    before = snapshot(folder)
    with pytest.raises(fgn.RunFolderError, match="has lost its checkpoint"):
        toy_run(folder, resume=True)
    assert snapshot(folder) == before


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "file/run", "loop/run"])
def test_a_path_that_cannot_be(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    before = snapshot(tmp_path)
    for use in (toy_run, fgn.load, lambda folder: toy_run(folder, resume=True)):
        with pytest.raises((fgn.RunFolderError, fgn.ConfigError)) as error:
            use(tmp_path / path)
        assert "\n" not in str(error.value)
    assert snapshot(tmp_path) == before
