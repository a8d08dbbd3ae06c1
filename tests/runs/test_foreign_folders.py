"""Run folders from elsewhere: links are not followed, and files of other runs are refused."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import fedgradnorm as fgn
import toys
from fedgradnorm._runs.reader import collect, read_run

ROUNDS = 6


class StopAt(fgn.Callback):
    """Ends the process's part of a run, as a crash would: the folder can be resumed."""

    def __init__(self, round_number: int, then: Callable[[], None] = lambda: None) -> None:
        self.round, self.then = round_number, then

    def on_round(self, state: object) -> None:
        if state.round == self.round:  # type: ignore[attr-defined]
            self.then()
            raise KeyboardInterrupt


class Do(fgn.Callback):
    """Does something after a round."""

    def __init__(self, round_number: int, what: Callable[[], None]) -> None:
        self.round, self.what = round_number, what

    def on_round(self, state: object) -> None:
        if state.round == self.round:  # type: ignore[attr-defined]
            self.what()


def train(folder: Path, seed: int = 0, callbacks: Sequence[fgn.Callback] = ()) -> fgn.Run:
    return fgn.train(
        toys.network(), toys.clients(), rounds=ROUNDS, seed=seed, folder=folder,
        callbacks=[fgn.Checkpoints(every=1), *callbacks],
    )  # fmt: skip


def resume(folder: Path) -> fgn.Run:
    return fgn.resume(folder, toys.network(), toys.clients())


def stopped(folder: Path, seed: int = 0) -> Path:
    """A run that was interrupted after its third round."""
    with pytest.raises(fgn.Interrupted):
        train(folder, seed, callbacks=[StopAt(3)])
    return folder


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("foreign") / "run")


@pytest.fixture
def folder(unfinished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unfinished, tmp_path / "run"))


@pytest.mark.parametrize(
    "name", ["metrics.csv", "log.txt", "checkpoint.safetensors", "run.json", "network.safetensors"]
)
def test_a_linked_file_is_neither_read_nor_written(folder: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    if (folder / name).exists():
        shutil.move(folder / name, victim)
    else:
        victim.write_text("mine")
    before = victim.read_bytes()
    (folder / name).symlink_to(victim)
    with pytest.raises(fgn.RunFolderError, match="symbolic link"):
        resume(folder)
    assert victim.read_bytes() == before


@pytest.mark.parametrize("name", ["tensorboard", "rows"])
def test_a_linked_folder_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "000001.safetensors").write_text("mine")
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(fgn.RunFolderError, match="link"):
        resume(folder)
    assert [path.name for path in elsewhere.iterdir()] == ["000001.safetensors"]


def test_a_run_is_not_saved_through_links(folder: Path, tmp_path: Path) -> None:
    run, victim, target = resume(folder), tmp_path / "victim", tmp_path / "saved"
    victim.write_text("mine")
    target.mkdir()
    (target / "metrics.csv").symlink_to(victim)
    run.save(target)
    assert victim.read_text() == "mine"
    assert not (target / "metrics.csv").is_symlink()


def test_a_checkpoint_of_another_run_is_refused(folder: Path, tmp_path: Path) -> None:
    other = stopped(tmp_path / "other", seed=1)
    (folder / "previous.safetensors").unlink()
    shutil.copy(other / "checkpoint.safetensors", folder)
    with pytest.raises(fgn.RunFolderError, match="belongs to another run"):
        resume(folder)


@pytest.mark.parametrize("source", ["network.safetensors", "heads.safetensors"])
def test_models_of_another_run_are_refused(tmp_path: Path, source: str) -> None:
    train(tmp_path / "one")
    train(tmp_path / "two", seed=1)
    shutil.copy(tmp_path / "two" / source, tmp_path / "one" / source)
    with pytest.raises(fgn.RunFolderError, match="belongs to another run"):
        fgn.load(tmp_path / "one")


def test_a_table_of_another_run_is_refused_and_named_in_reports(tmp_path: Path) -> None:
    """A finished run's tables are bound to it by their checksums in run.json."""
    train(tmp_path / "one")
    train(tmp_path / "two", seed=1)
    shutil.copy(tmp_path / "two" / "metrics.csv", tmp_path / "one")
    with pytest.raises(fgn.RunFolderError, match=r"metrics.csv is damaged.*run.json"):
        fgn.load(tmp_path / "one")
    (problem,) = read_run(tmp_path / "one").problems
    assert problem.startswith("metrics.csv is damaged")
    saved = fgn.load(tmp_path / "two").save(tmp_path / "saved")
    assert fgn.load(saved).history.equals(fgn.load(tmp_path / "two").history)


def test_a_copy_of_a_file_of_rows_is_nobody_s_business(tmp_path: Path) -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    clients = [fgn.Client(f"c{k}", fgn.regression(1), (x, x[:, :1])) for k in range(220)]
    folder, copy = tmp_path / "run", "000001 (copy).safetensors"

    def run(then: Callable[[], None]) -> None:
        fgn.train(
            torch.nn.Linear(3, 2), clients, rounds=6, server=fgn.Server(participation=0.02),
            folder=folder, callbacks=[fgn.Checkpoints(every=1), StopAt(4, then)],
        )  # fmt: skip

    def leave_a_copy() -> None:
        (folder / "rows" / copy).write_text("mine")

    with pytest.raises(fgn.Interrupted):
        run(leave_a_copy)
    torch.manual_seed(0)
    assert fgn.resume(folder, torch.nn.Linear(3, 2), clients).finished
    assert (folder / "rows" / copy).read_text() == "mine"


def test_an_exchanged_file_of_the_same_run_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run")
    shutil.copy(tmp_path / "run" / "network.safetensors", tmp_path / "run" / "heads.safetensors")
    with pytest.raises(fgn.RunFolderError, match="belongs to another run or client"):
        fgn.load(tmp_path / "run")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        found = resume(folder)
    assert "continuing from the checkpoint before it" in caplog.text
    whole = fgn.train(toys.network(), toys.clients(), rounds=ROUNDS)
    assert found.shared is not None
    assert whole.shared is not None
    assert torch.equal(toys.parameters(found.shared), toys.parameters(whole.shared))
    assert not (folder / "previous.safetensors").exists()  # a finished run needs none


def test_a_kill_between_two_checkpoints_continues_from_the_first(folder: Path) -> None:
    (folder / "checkpoint.safetensors").unlink()
    assert resume(folder).finished


def test_a_folder_that_is_replaced_while_training_is_not_overwritten(tmp_path: Path) -> None:
    other, folder = stopped(tmp_path / "other", seed=1), tmp_path / "run"
    before = {p.name: p.read_bytes() for p in other.iterdir() if p.is_file()}

    def swap() -> None:
        folder.rename(tmp_path / "moved")
        other.rename(folder)

    with pytest.raises(fgn.RunFolderError, match="was replaced by another folder"):
        train(folder, callbacks=[Do(2, swap)])
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_a_name_cannot_forge_a_line_of_the_log(tmp_path: Path) -> None:
    x = torch.randn(20, 3)
    name = "a\n2026-01-01 00:00:00,000 INFO forged\x1b[2J"
    client = fgn.Client(name, fgn.regression(1), (x, 1e9 * x[:, :1]))
    fgn.train(torch.nn.Linear(3, 4), [client], rounds=2, folder=tmp_path / "run")
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "forged" in text
    assert "\x1b" not in text
    assert not any(line.startswith("2026-01-01 00:00:00,000") for line in text.splitlines())


def test_saving_to_a_place_that_cannot_be_written_has_a_way_out(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(fgn.RunFolderError, match="choose another folder"):
        run.save(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["a\0b", "x" * 300], ids=["null byte", "too long"])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    run = fgn.train(toys.network(), toys.clients(), rounds=1)
    with pytest.raises(fgn.RunFolderError, match="choose another folder"):
        run.save(tmp_path / name)
    with pytest.raises(fgn.RunFolderError, match="choose another file"):
        run.export("corner", tmp_path / f"{name}.pt2")
    with pytest.raises(fgn.RunFolderError, match="cannot be read"):
        collect([tmp_path / name])


@pytest.mark.parametrize("name", ["run.json", "metrics.csv"])
def test_a_file_with_a_hole_is_not_read_into_memory(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole takes nothing of the disk, however large it is."""
    monkeypatch.setenv("FEDGRADNORM_MEMORY", "0.1")
    with (folder / name).open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(fgn.RunFolderError, match=rf"{name}: reading it needs .* of memory"):
        resume(folder)


def test_a_linked_config_is_a_fault_in_reports(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("method = 'fedavg'")
    (folder / "config.toml").symlink_to(tmp_path / "victim")
    assert any("symbolic link" in problem for problem in read_run(folder).problems)
