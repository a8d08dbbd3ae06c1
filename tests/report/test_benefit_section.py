"""The benefit on the page: what the command ``benefit`` wrote next to the runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedgradnorm import RunFolderError
from fedgradnorm._benefit.benefit import Benefit
from fedgradnorm._benefit.client_gain import ClientGain
from fedgradnorm._report.benefit import read_benefit, write_benefit
from fedgradnorm._report.page import make_page
from report.run_folders import write_run

NASTY = '<img src=x onerror=alert(1)>"'


def local(parent: Path, seed: int, **more: object) -> Path:
    settings = {"seed": seed, "share": "none", "lr": 0.1}
    return write_run(parent, "local", seed, manifest={"settings": settings}, **more)


def section(html: str) -> str:
    found = re.search(r'<section id="benefit">.*?</section>', html, re.DOTALL)
    return found[0] if found else ""


def gains(*names: str) -> Benefit:
    return Benefit(
        tuple(
            ClientGain(name, "t", "squared error", "%", 20, 4.0, 3.0, 25.0 - i, 20.5 - i, 30.25)
            for i, name in enumerate(names)
        )
    )


def test_what_the_command_measured_comes_back_and_is_on_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, "fedrep", 0)
    local(tmp_path, 0)
    path = tmp_path / "benefit.csv"
    write_benefit(gains("gender", "landmark"), path, "fedrep", 1)
    method, seeds, rows = read_benefit(path)
    assert (method, seeds, rows) == ("fedrep", 1, gains("gender", "landmark"))
    text = section(make_page([tmp_path]).html)
    assert "Benefit over training alone: fedrep" in text
    assert "+20.5 to +30.2" in text


def test_names_that_look_like_gaps_or_numbers_come_back(tmp_path: Path) -> None:
    found = Benefit(
        tuple(
            ClientGain(name, task, "loss", "%", 9, 0.1 + 0.2, 2 / 3, 1e-17, -1 / 3, 0.5)
            for name, task in (("NA", "01"), ("null", "nan"))
        )
    )
    write_benefit(found, tmp_path / "benefit.csv", "none", 1)
    assert read_benefit(tmp_path / "benefit.csv") == ("none", 1, found)


@pytest.mark.parametrize(
    ("names", "method", "seeds"),
    [
        (("gender",), "fedrep", 1),
        (("gender", "landmark"), "fedgradnorm", 1),
        (("gender", "landmark"), "fedrep", 2),
    ],
)
def test_what_was_measured_of_other_runs_is_not_shown(
    tmp_path: Path, names: tuple[str, ...], method: str, seeds: int
) -> None:
    write_run(tmp_path, "fedrep", 0)
    local(tmp_path, 0)
    write_benefit(gains(*names), tmp_path / "benefit.csv", method, seeds)
    assert not section(make_page([tmp_path]).html)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "client,method,seeds\nx,fedrep,one\n", "\0\n"])
def test_a_damaged_file_is_named_and_left_out(tmp_path: Path, text: str) -> None:
    write_run(tmp_path, "fedrep", 0)
    local(tmp_path, 0)
    (tmp_path / "benefit.csv").write_text(text)
    with pytest.raises(RunFolderError, match="damaged"):
        read_benefit(tmp_path / "benefit.csv")
    page = make_page([tmp_path])
    assert any("benefit.csv is damaged" in note for note in page.report.notes)
    assert not section(page.html)


def test_names_are_text(tmp_path: Path) -> None:
    tasks = {NASTY: "accuracy"}
    folder = write_run(tmp_path, "fedrep", 0, tasks=tasks)
    (folder / "config.toml").write_text(f"name = 'x'\nmethod = {json.dumps(NASTY)}\nseed = 0\n")
    local(tmp_path, 0, tasks=tasks)
    write_benefit(gains(NASTY), tmp_path / "benefit.csv", NASTY, 1)
    text = section(make_page([tmp_path]).html)
    assert text
    assert "<img" not in text
