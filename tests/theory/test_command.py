"""``fedgradnorm theory`` and its figure."""

import subprocess
import sys

from typer.testing import CliRunner

import page_blocks
from fedgradnorm._cli import app
from fedgradnorm._report.figures.theory_figure import theory_figure
from fedgradnorm._theory import claims, study_assumptions
from fedgradnorm._theory.findings import Claim, Curve, Finding, Panel

PANEL = Panel("a title", "x", "y", [Curve("one", (1, 2), (1e-3, 1e-5)),
                                    Curve("", (1, 2), (1e-2, 1e-4), "dashed"),
                                    Curve("two", (1, 2), (1.0, 2.0), "points")])  # fmt: skip


def test_the_table_says_claim_by_claim_and_where_the_figure_is(tmp_path, monkeypatch):
    floor = Finding([Claim("X1", "a claim", "holds with a floor", "a number")], [PANEL])
    studies = {"audit": study_assumptions.weights_audit, "other": lambda: floor}
    monkeypatch.setattr(claims, "STUDIES", studies)
    monkeypatch.chdir(tmp_path)
    ((language, command),) = page_blocks.fences("docs/theory.md")
    assert language == "bash"
    _, *words, name = command.split()
    assert words == ["theory", "--out"]
    out = tmp_path / "new" / name
    result = CliRunner().invoke(app, [*words, str(out)])
    assert result.exit_code == 0, result.output
    for text in ("A1", "does not hold", "X1", "a claim", "a number", "figure:"):
        assert text in result.stdout
    assert str(out) in result.stdout.replace("\n", "")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_bad_ending_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "STUDIES", {"never": lambda: 1 / 0})
    result = CliRunner().invoke(app, ["theory", "--out", str(tmp_path / "theory.txt")])
    assert result.exit_code == 2
    assert ".png" in result.stderr


def test_panels_that_do_not_fill_a_row_are_drawn_too(tmp_path):
    path = theory_figure([PANEL] * 4, tmp_path / "four.svg")
    assert path.read_text().startswith("<?xml")


def test_importing_the_package_does_not_import_theory():
    code = "import sys, fedgradnorm; sys.exit('fedgradnorm._theory' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
