"""docs/deploy.md from its first command to its last, on machines with nothing but loopback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fedgradnorm as fgn
import walkthrough
from loopback import assert_alone, run_inside

PAGE = walkthrough.ROOT / "docs" / "deploy.md"
LANGUAGES = {"bash", "python", "toml", "text"}
HOSTS = {"fed.example.org": "127.0.0.2", "node0.example.org": "127.0.0.3"}


def walked(heading: str, folder: Path) -> Path:
    """The folder of the machines, after one chapter of the page."""
    seen = folder / "seen"
    program = walkthrough.__file__
    out = run_inside(sys.executable, program, PAGE, heading, folder, seen=seen, hosts=HOSTS)
    assert_alone(seen)
    print(out)
    return folder


def test_no_fence_of_the_page_is_left_out():
    """Each says what it is and on whose machine, and each change the walk makes has its place."""
    found = walkthrough.fences(PAGE)
    assert len(found) == PAGE.read_text().count("\n```") / 2
    for fence in found:
        assert fence.language in LANGUAGES, fence
        assert fence.machines, fence
    text = PAGE.read_text()
    assert all(long in text for long in walkthrough.SHORTER)
    assert all(host in text for host in HOSTS)
    chapters = ("One cluster", "Several organizations")
    assert found == [f for chapter in chapters for f in walkthrough.fences(PAGE, chapter)]


@pytest.mark.slow
def test_one_cluster(tmp_path):
    folder = walked("One cluster", tmp_path)
    runs = sorted(folder.glob("*/runs/*"))
    assert [run.parts[-3] for run in runs] == ["node0", "node0"]  # rank 0 alone keeps a folder
    assert all(fgn.load(run).finished for run in runs)


@pytest.mark.slow
def test_from_three_empty_machines_to_a_finished_run(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")
    folder = walked("Several organizations", tmp_path)
    run = fgn.load(folder / "server" / "runs" / "hospitals-fedgradnorm-seed0")
    assert run.finished
    assert not run.heads
    assert not list((folder / "server").rglob("client.key"))  # keys are made where they are used
    for name in ("north", "south"):
        (result,) = (folder / name).glob("state/*/result")
        assert list(fgn.load(result).heads) == [name]
