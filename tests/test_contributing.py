"""What CONTRIBUTING.md names is there, and the version is the same everywhere."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import fedgradnorm

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def steps(target: str) -> str:
    """The commands of a target, none of them carried out."""
    command = ["make", "--dry-run", "--always-make", "-C", str(ROOT), target]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_every_target_that_the_page_names_exists() -> None:
    named = set(re.findall(r"\bmake ([a-z-]+)(?=[`\s])", "\n".join(code())))
    assert {"test", "test-slow", "coverage", "check", "lint", "dist"} <= named
    for target in named:
        assert steps(target)


def code() -> list[str]:
    """The page's commands, in blocks and in lines."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    return [*blocks, *(f"{line}`" for line in re.findall(r"`([^`\n]+)`", PAGE))]


def test_every_other_command_is_of_a_package_that_development_installs() -> None:
    lines = [
        line
        for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    others = {line.split()[0] for line in lines if not line.startswith("make ")}
    assert others == {".venv/bin/pre-commit"}
    assert any(need.startswith("pre-commit") for need in project()["optional-dependencies"]["dev"])


def test_every_file_and_link_that_the_page_names_exists() -> None:
    files = re.findall(r"`((?:src|tests|docs)/[\w./-]*|[A-Z]+\.\w+|constraints\.txt)`", PAGE)
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert len(files) > 8
    assert [name for name in [*files, *links] if not (ROOT / name).exists()] == []


def test_the_hook_before_a_commit_is_the_lint_of_the_gate() -> None:
    hook = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"entry: (.*)", hook) == ["make lint"]
    assert re.findall(r"repo: (.*)", hook) == ["local"]
    assert "ruff format --check ." in steps("lint")
    assert "ruff check ." in steps("lint")


def test_the_gate_runs_both_tiers_of_tests() -> None:
    assert '-m "not slow"' in steps("check")
    assert "-m slow" in steps("check")


def test_tools_of_development_are_pinned() -> None:
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.M)
    needs = [re.split(r"[>\[]", need)[0] for need in project()["optional-dependencies"]["dev"]]
    assert set(needs) - {"fedgradnorm"} <= set(pinned)


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_set_in_one_place_and_told_the_same_elsewhere() -> None:
    assert "version" in project()["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, flags=re.M) == [fedgradnorm.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\d\S*)", changes, flags=re.M)[0] == fedgradnorm.__version__
