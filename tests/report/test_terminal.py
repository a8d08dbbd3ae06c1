"""Tables on a terminal of 80 columns: every number of the wide table is there, whole."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from fedgradnorm import ConfigError
from fedgradnorm._cli import app, board
from fedgradnorm._report.frame import read_report
from fedgradnorm._report.grid import to_terminal
from fedgradnorm._report.tables import shown_grids, tasks_grid
from fedgradnorm._runs.run_summary import WholeFrame
from fedgradnorm._training.callbacks import Progress
from fedgradnorm.experiments._compare import watched
from fedgradnorm.experiments._config.config_file import load_config
from report.run_folders import write_run

WIDTH = 80
CONFIGS = Path(__file__).parents[2] / "configs"


def runs(folder: Path) -> Path:
    """Three methods, of which one has a long name, in two seeds."""
    own = '[weighting]\nlr = 0.008\n[own]\n"weighting.lr" = 0.008\n'
    for seed in (0, 1):
        write_run(folder, "fedrep", seed)
        write_run(folder, "fedgradnorm-direct", seed, shift=-0.05, config=own)
        write_run(folder, "local", seed, shift=0.05)
    return folder


def in_terminal(*words: str) -> str:
    """What the command writes to a pseudo-terminal of 80 columns."""
    process, screen = pty.fork()
    if process == 0:  # the child: replaced by the command
        env = {**os.environ, "COLUMNS": str(WIDTH), "LINES": "40", "TERM": "xterm", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "fedgradnorm", *words]
        os.execve(sys.executable, command, env)
    heard = b""
    while select.select([screen], [], [], 60)[0]:
        try:
            part = os.read(screen, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        heard += part
    assert os.waitpid(process, 0)[1] == 0, heard.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", heard.decode()).replace("\r", "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_report_in_a_narrow_terminal_loses_no_digit(tmp_path: Path) -> None:
    place = runs(tmp_path / "runs")
    shown = in_terminal("report", str(place), "--out", str(tmp_path / "page.html"))
    tables = shown.partition("page: ")[0]
    assert max(map(len, tables.splitlines())) <= WIDTH
    for row in tasks_grid(read_report([place])).rows:
        assert all(cell.text in tables for cell in row[:4] if cell.numbers), row
        assert all(word in tables for word in row[1].text.split())


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_number_that_fits_is_whole_and_the_others_are_named(
    tmp_path: Path, width: int, whole: bool
) -> None:
    for grid in shown_grids(read_report([runs(tmp_path)])):
        console = Console(width=width, color_system=None)
        parts = to_terminal(replace(grid, whole=whole), width)
        with console.capture() as heard:
            for part in parts:
                console.print(part, crop=False)
        text = heard.get()
        tables = [part for part in parts if isinstance(part, Table)]
        assert max(map(len, text.splitlines())) <= width
        after = " ".join(text.partition("on the page: ")[2].split())
        named = [title for title in after.split(", ") if title]
        assert not set(named) & set(grid.columns[: 4 if width >= 80 else 3])
        for column, title in enumerate(grid.columns):
            if title not in named:
                assert all(row[column].text in text for row in grid.rows if row[column].numbers)
        assert all(word in text for row in grid.rows for word in row[1].text.split())
        assert (len(tables) > 1) <= whole
        assert bool(named) <= (not whole and width < 200)


def test_a_summary_shows_all_of_itself() -> None:
    wide = pd.DataFrame({f"column_{n}": range(100) for n in range(30)})
    text = repr(WholeFrame(wide))
    assert "..." in repr(wide)
    assert "..." not in text
    assert all(f"column_{n}" in text for n in range(30))


def test_near_misses_of_files_and_of_keys_without_their_table(tmp_path: Path) -> None:
    (tmp_path / "radcom.toml").write_text((CONFIGS / "radcom.toml").read_text())
    with pytest.raises(ConfigError, match=r"no such file; did you mean '.*radcom\.toml'\?"):
        load_config(tmp_path / "radcon.toml")
    with pytest.raises(ConfigError, match=r"no such file; did you mean '.*radcom\.toml'\?"):
        load_config(tmp_path / "radcom")
    for word, key in (("head_steps=3", "local.head_steps"), ("gamma=0.5", "weighting.gamma")):
        with pytest.raises(ConfigError, match=f"did you mean '{key}'"):
            load_config(tmp_path / "radcom.toml", [word])


def test_a_run_takes_a_device_and_commands_can_be_completed() -> None:
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "120"}).output
    assert "--device" in shown
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize("terminal", [True, False])
def test_runs_one_after_another_say_how_much_is_left_of_all(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, color_system=None)
    monkeypatch.setattr(board, "err", console)
    one, other = (type("Trial", (), {"title": title})() for title in ("one", "other"))
    with board.showing_runs() as watch:
        for trial in (one, other):
            with watched(trial, 4, watch) as show:
                show(Progress(2, 4, 1.0, {"a": 1.0}, {"a": 1.0}))
    for line in ("one: done; 1 of 4 runs done", "other: done; 2 of 4 runs done"):
        assert line in text.getvalue()
