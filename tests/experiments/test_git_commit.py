"""A run says which commit of the project around it made it, and on which device."""

import subprocess
from pathlib import Path

import pytest
import torch

import fedgradnorm as fgn
import toys
from fedgradnorm._report.page import made_when
from fedgradnorm._runs.reader import read_run
from fedgradnorm._training.trainer import git_commit

NOBODY = ("-c", "user.name=n", "-c", "user.email=n@localhost")


def git(place: Path, *words: str) -> str:
    done = subprocess.run(["git", *NOBODY, *words], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_commit_is_the_one_git_names(tmp_path):
    project = tmp_path / "project"
    (project / "deep").mkdir(parents=True)
    try:
        git(project, "init", "-q")
    except FileNotFoundError:
        pytest.skip("no git here")
    assert git_commit(project) == ""  # nothing is committed yet
    git(project, "commit", "-q", "--allow-empty", "-m", "one")
    head = git(project, "rev-parse", "HEAD")
    assert git_commit(project / "deep") == head[:12]
    git(project, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    assert git_commit(tmp_path / "tree") == head[:12]
    git(project, "pack-refs", "--all")
    assert git_commit(project) == head[:12]
    git(project, "checkout", "-q", "--detach")
    assert git_commit(project) == head[:12]
    (project / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert git_commit(project) == ""


def test_a_run_says_which_device_auto_turned_out_to_be(tmp_path):
    run = fgn.train(toys.network(), toys.clients(), rounds=1, folder=tmp_path / "run")
    assert run.manifest["settings"]["device"] == "auto"
    found = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    assert run.manifest["versions"]["device"] == found
    assert f"on {found}" in made_when([read_run(tmp_path / "run")])


def test_a_working_folder_that_was_removed_stops_no_training(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    run = fgn.train(toys.network(), toys.clients(), rounds=1, folder=tmp_path / "run")
    assert run.finished
    assert "commit" not in run.manifest["versions"]
