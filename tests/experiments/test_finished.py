"""``run.manifest`` and ``run.finished`` say the same of a run, wherever it was trained."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._runs.manifest import read_manifest


def train(folder: Path | None, **more: Any) -> fgn.Run:
    return flat.train(toys.network(), toys.clients(), rounds=3, folder=folder, **more)


def stop_after(round_number: int) -> Any:
    def stop(event: Any) -> None:
        if event.round == round_number:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("folder", [None, "run"])
def test_a_run_that_train_returns_is_finished_in_every_word(
    folder: str | None, tmp_path: Path
) -> None:
    run = train(folder and tmp_path / folder)
    assert run.finished
    assert run.manifest["finished"] is True
    if folder:
        assert read_manifest(tmp_path / folder) == run.manifest
        assert fgn.load(tmp_path / folder).manifest["finished"] is True


@pytest.mark.parametrize("folder", [None, "run"])
@pytest.mark.parametrize("at", [1, 3])
def test_an_interrupted_run_agrees_with_itself(folder: str | None, at: int, tmp_path: Path) -> None:
    with pytest.raises(fgn.Interrupted) as stopped:
        train(folder and tmp_path / folder, progress=stop_after(at))
    run = stopped.value.run
    assert run.manifest["finished"] is run.finished is (at == 3)
    if folder:  # its network is not written yet
        assert read_manifest(tmp_path / folder)["finished"] is False
        run = train(tmp_path / folder, resume=True)
        assert run.manifest["finished"] is run.finished is True


def test_ctrl_c_leaves_an_unfinished_run(tmp_path: Path) -> None:
    def press(event: Any) -> None:
        if event.round == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(fgn.Interrupted) as stopped:
        train(tmp_path / "run", progress=press)
    assert stopped.value.run.manifest["finished"] is stopped.value.run.finished is False
