"""What the documentation shows is run: every Python block and every command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedgradnorm.tasks._kinds import KINDS
from fedgradnorm.tasks._named_metrics import METRICS

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("your-data", "tasks", "networks", "worth"))]
IN_ORDER = ["docs/start.md", "docs/data-files.md"]
"""Pages whose blocks, of whatever language, build on each other."""
REAL = "docs/data-clients.md"  # its blocks need the files that it describes
FILES = ("school.mat", "LandmineData.mat", "PRSA_Data_20130301-20170228.zip", "MTFL.zip")
NOT_HERE = {
    "make test": "is the command this test is run by",
    "pip install -c constraints.txt -e .": "is what `make test` sets up with",
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def commands(page: str) -> list[str]:
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run_top_to_bottom(page, tmp_path):
    program = "\n".join(blocks(page, "python"))
    assert program
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/worth.md"])
def test_commands_run(page, tmp_path):
    """In order, in a folder that has the repository's configs, as a reader would run them."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    for command in commands(page):
        if command in NOT_HERE:
            continue
        words = shlex.split(command)
        if words[0] == "make":
            words = ["make", "-C", str(ROOT), *words[1:], f"ARGS=--out {tmp_path}"]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "PATH": path},
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", IN_ORDER)
def test_blocks_run_from_the_first_to_the_last(page, tmp_path):
    """In one process, which loads PyTorch once; a block of TOML is a file of its first word."""
    found = re.findall(r"```(\w+)\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert {language for language, _ in found} <= {"python", "toml", "bash"}
    lines = ["from fedgradnorm._cli import app"]
    for language, text in found:
        if language == "toml":
            lines.append(f"open({text.split()[1]!r}, 'w').write({text!r})")
        elif language == "bash":
            words = [shlex.split(line) for line in text.splitlines() if line not in NOT_HERE]
            assert all(one[0] == "fedgradnorm" for one in words), words
            lines += [f"assert not app({one[1:]!r}, standalone_mode=False)" for one in words]
        else:
            lines.append(text)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.real_data
def test_the_page_of_real_clients_runs(tmp_path):
    folder = Path(os.environ.get("FEDGRADNORM_DATA") or tmp_path).expanduser()
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} in the folder named by FEDGRADNORM_DATA")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "FEDGRADNORM_CACHE": str(tmp_path / "cache")}
    program = [sys.executable, "-c", "\n".join(blocks(REAL, "python"))]
    for words in [program, *map(shlex.split, commands(REAL))]:
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


def test_readme_opens_with_the_two_commands_and_a_picture_that_exists():
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < text.index("![")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert all((ROOT / link).exists() for link in links)


def table_after(page: str, header: str) -> list[list[str]]:
    """The rows of the table with this header."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = text[text.index(header) :].splitlines()[2:]
    rows = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_the_table_of_metrics_has_every_name():
    header = "| task | always there | by name |"
    (one, many, numbers) = (
        set(re.findall(r"`(\w+)`", row[2])) for row in table_after("docs/your-data.md", header)
    )
    known = {
        kind: {name for name, metric in METRICS.items() if kind in metric.kinds} for kind in KINDS
    }
    assert known["classification"] == known["binary"] == known["ordinal"] == one
    assert known["multilabel"] == (one | many) - {"kappa"}
    assert known["regression"] == numbers
