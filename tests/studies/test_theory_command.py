"""``make theory`` and its figure."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import page_blocks
from studies.theory import claims, study_assumptions
from studies.theory.__main__ import app
from studies.theory.figure import theory_figure
from studies.theory.findings import Claim, Curve, Finding, Panel

ROOT = Path(__file__).parents[2]
PANEL = Panel("a title", "x", "y", [Curve("one", (1, 2), (1e-3, 1e-5)),
                                    Curve("", (1, 2), (1e-2, 1e-4), "dashed"),
                                    Curve("two", (1, 2), (1.0, 2.0), "points")])  # fmt: skip


def test_the_page_names_the_command_and_make_runs_the_study() -> None:
    assert page_blocks.fences("docs/theory.md") == [("bash", "make theory\n")]
    command = ["make", "--dry-run", "--always-make", "-C", str(ROOT), "theory", "ARGS=--out x.svg"]
    steps = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "python -m studies.theory --out x.svg" in steps


def test_the_table_says_claim_by_claim_and_where_the_figure_is(tmp_path, monkeypatch):
    floor = Finding([Claim("X1", "a claim", "holds with a floor", "a number")], [PANEL])
    studies = {"audit": study_assumptions.weights_audit, "other": lambda: floor}
    monkeypatch.setattr(claims, "STUDIES", studies)
    out = tmp_path / "new" / "theory.png"
    result = CliRunner().invoke(app, ["--out", str(out)])
    assert result.exit_code == 0, result.output
    for text in ("A1", "does not hold", "X1", "a claim", "a number", "figure:"):
        assert text in result.stdout
    assert str(out) in result.stdout.replace("\n", "")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("theory.txt", ".png"),
        ("folder.png", "is a folder"),
        ("file/theory.png", "cannot be written"),
        (f"{'x' * 300}.png", "cannot be written"),
        (f"{'x' * 245}.png", "cannot be written"),  # its temporary name is too long
        ("closed/theory.png", "cannot be written"),
    ],
)
def test_a_bad_place_is_refused_before_any_work(tmp_path, monkeypatch, name, said):
    if name.startswith("closed") and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    monkeypatch.setattr(claims, "STUDIES", {"never": lambda: 1 / 0})
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir(mode=0o500)
    result = CliRunner().invoke(app, ["--out", f"{tmp_path}/{name}"])
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_panels_that_do_not_fill_a_row_are_drawn_too(tmp_path):
    path = theory_figure([PANEL] * 4, tmp_path / "four.svg")
    assert path.read_text().startswith("<?xml")
