"""A run of many clients on disk: what it writes, and that a kill at any moment loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import fedgradnorm as fgn
from engines import roster_killed
from engines.roster_killed import PLACES, clients, go
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.checkpoint import Segments
from fedgradnorm._runs.layout import CHECKPOINT, HEADS, METRICS, NETWORK, ROWS, SPREAD

TESTS = Path(__file__).parent.parent


@pytest.mark.slow
def test_killed_in_its_writes_it_ends_the_same(tmp_path: Path) -> None:
    words = [sys.executable, roster_killed.__file__, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"killed {len(PLACES)} times"
    for name in (METRICS, SPREAD, HEADS, NETWORK):
        whole, killed = ((tmp_path / run / name).read_bytes() for run in ("whole", "killed"))
        assert whole == killed, name


def test_checkpoints_grow_with_what_changed(tmp_path: Path) -> None:
    held, folder = [], tmp_path / "run" / ROWS

    def look(event: object) -> None:
        files = [checkpoint.load(path) for path in sorted(folder.iterdir())]
        held.append([sum(len(part["names"]) for part in file["parts"]) for file in files])

    go(tmp_path / "run", progress=look)
    assert held[8] == [22] * 9  # a tenth of the clients in each of nine rounds
    assert not folder.exists()  # what is kept of a finished run does not depend on its checkpoints


def test_rows_are_written_anew_when_files_hold_them_twice(tmp_path: Path) -> None:
    class Rows:
        alive, new = 10, 4

        def count(self) -> tuple[int, int]:
            return self.new, self.alive

        def changed(self, everything: bool = False) -> dict[str, list[str]]:  # noqa: ARG002
            return {"parts": []}

        def settle(self) -> None:
            self.new = 4

    segments, journal = Segments(tmp_path), Rows()
    held, before = [], set[str]()
    for _ in range(7):
        segments.add(journal)  # type: ignore[arg-type]
        segments.settle(journal)  # type: ignore[arg-type]
        held.append(len(segments.names))
        now = set(segments.names)
        assert {p.name for p in (tmp_path / ROWS).iterdir()} == now | before  # of two checkpoints
        before = now
    assert held == [1, 2, 3, 4, 5, 1, 2]
    segments.finish()
    assert {p.name for p in (tmp_path / ROWS).iterdir()} == now


def test_a_saved_run_of_many_predicts_as_before(tmp_path: Path) -> None:
    run = go(tmp_path / "run")
    found = fgn.load(tmp_path / "run")
    x, _ = clients(4)[3].test
    for name in ("c3", "c218"):
        assert torch.equal(found.predict(name, x), run.predict(name, x))
    assert list(found.clients) == list(run.clients)
    again = tmp_path / "again"
    found.save(again)
    assert torch.equal(fgn.load(again).predict("c3", x), run.predict("c3", x))
    pd.testing.assert_frame_equal(found.history, run.history)


def test_a_file_of_rows_that_is_lost_or_damaged_is_named(tmp_path: Path) -> None:
    def stop(progress: object) -> None:
        if progress.round == 6:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(fgn.Interrupted):
        go(folder, progress=stop)
    first = min((folder / ROWS).iterdir())
    data = bytearray(first.read_bytes())
    before = (folder / CHECKPOINT).read_bytes()
    data[-1] ^= 1
    first.write_bytes(data)
    with pytest.raises(fgn.RunFolderError, match=rf"{first.name} is damaged"):
        go(folder)
    first.unlink()
    with pytest.raises(fgn.RunFolderError, match=first.name):
        go(folder)
    assert (folder / CHECKPOINT).read_bytes() == before
