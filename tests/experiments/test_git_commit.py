"""A run says which commit of the project around it made it."""

import subprocess
from pathlib import Path

import pytest

from fedgradnorm._training.describe import git_commit

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
