"""The oldest versions that ``pyproject.toml`` allows train, save, load and run the commands."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROGRAM = """
import numpy as np, torch
import fedgradnorm as fgn

x = np.random.default_rng(0).normal(size=(200, 5))
clients = [
    fgn.Client("a", fgn.classification(2), train=(x, (x[:, 0] > 0).astype(int))),
    fgn.Client("b", fgn.regression(1), train=(x, x[:, 1])),
]
run = fgn.train(torch.nn.Linear(5, 8), clients, rounds=3, folder="run")
assert np.allclose(fgn.load("run").predict("b", x), run.predict("b", x))
print(run.summary())
"""


def oldest(requirements: list[str]) -> list[str]:
    """``name==version`` for each lower bound; torch stays as it is installed."""
    found = [re.match(r"([\w-]+)>=([\d.]+)", requirement) for requirement in requirements]
    assert all(found)
    return [f"{m[1]}=={m[2]}" for m in found if m and m[1] != "torch"]


def needed_by(name: str) -> set[str]:
    """The distribution and all it depends on, of those that are installed."""
    names, todo = set(), {name}
    while todo:
        one = todo.pop()
        try:
            requirements = importlib.metadata.requires(one) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        names.add(one)
        plain = {re.match(r"[\w.-]+", r)[0] for r in requirements if "extra ==" not in r}
        todo |= plain - names
    return names - {"numpy", "setuptools"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment: the installed torch by links, everything else at its lower bound."""
    folder = tmp_path_factory.mktemp("oldest")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    at = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    here = Path(sysconfig.get_path("purelib"))
    for name in needed_by("torch"):
        tops = {file.parts[0] for file in importlib.metadata.files(name) or []} - {".."}
        for top in tops - {"__pycache__", "bin"}:
            if not (at / top).exists():
                (at / top).symlink_to(here / top)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *oldest(PROJECT["dependencies"])],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    if "Could not find a version" in done.stderr or "Failed to establish" in done.stderr:
        pytest.skip("no package index: the oldest versions cannot be installed")
    assert done.returncode == 0, done.stderr
    return python


def call(python: Path, *words: str, cwd: Path, fails: bool = False) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def test_training_saving_and_loading(python: Path, tmp_path: Path) -> None:
    assert "weight" in call(python, "-c", PROGRAM, cwd=tmp_path)


def test_what_needs_an_extra_says_which_before_it_trains(python: Path, tmp_path: Path) -> None:
    """The environment has the core dependencies alone."""
    call(python, "-m", "fedgradnorm", "init", "pumps", cwd=tmp_path)
    for words, extra in (
        (["compare", "pumps/pumps.toml"], "report"),
        (["demo"], "report"),
    ):
        said = call(python, "-m", "fedgradnorm", *words, cwd=tmp_path, fails=True)
        assert f"pip install 'fedgradnorm[{extra}]'" in " ".join(said.split())
    assert not (tmp_path / "runs").exists()


def test_the_commands(python: Path, tmp_path: Path) -> None:
    call(python, "-m", "fedgradnorm", "init", "pumps", cwd=tmp_path)
    call(python, "-m", "fedgradnorm", "run", "pumps/pumps.toml", "epochs=1", cwd=tmp_path)
    assert "proximal" in call(python, "-m", "fedgradnorm", "methods", "fedprox", cwd=tmp_path)
