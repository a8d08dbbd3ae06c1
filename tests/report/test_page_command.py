"""``fedgradnorm report`` where its file is a page."""

import webbrowser

from typer.testing import CliRunner

from fedgradnorm._cli import app
from report.run_folders import write_run


def report(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_the_page_is_written_into_the_folder_and_opened(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    write_run(tmp_path, "fedrep")
    write_run(tmp_path, "fedgradnorm", rounds=6, planned=12)
    result = report(tmp_path, "--open")
    assert result.exit_code == 0, result.output
    assert "fedgradnorm-seed0 is not finished: round 6 of 12" in result.stderr
    assert opened == [(tmp_path / "report.html").resolve().as_uri()]
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_endings(tmp_path):
    write_run(tmp_path / "runs")
    assert report(tmp_path / "runs", "-o", tmp_path / "p.HTM").exit_code == 0
    assert (tmp_path / "p.HTM").read_bytes().startswith(b"<!doctype html>")
    wrong = report(tmp_path / "runs", "-o", tmp_path / "f.png")
    assert wrong.exit_code == 2
    assert "must end in .html; for figures use `compare --from`" in " ".join(wrong.stderr.split())


def test_no_runs_is_an_error_of_one_line(tmp_path):
    result = report(tmp_path / "nowhere")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "nowhere").exists()
