"""The pages on privacy: programs run, configs are read, numbers are those of stored results."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import fedgradnorm as fgn

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "differential-privacy.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "privacy.json").read_text())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("privacy", monkeypatch)


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A program of the folder benchmarks, as a module."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    path = ROOT / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_of_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_program_runs() -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    exec("\n".join(blocks("python")), {})


def test_the_table_of_a_config_is_one() -> None:
    (text,) = blocks("toml")
    table = tomllib.loads(text)
    assert fgn.Privacy(**{k: v for k, v in table["privacy"].items() if k != "clients"})
    assert fgn.Privacy(**table["data"]["clients"][0]["privacy"])


def test_the_numbers_are_those_that_were_measured(benchmark: ModuleType) -> None:
    assert benchmark.page_table(RESULTS["rows"]) in PAGE
    for value in RESULTS["theirs"].values():
        assert f"{value:.5f}" in PAGE


def test_what_a_private_federation_costs_is_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")
    stored = json.loads((ROOT / "benchmarks" / "results" / "private.json").read_text())
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert script("private", monkeypatch).page_table(stored["rows"]) in page
    assert f"a load of {stored['load']:.0f} on {stored['cores']} cores" in page


def test_the_benchmark_still_runs(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    words = ["privacy.py", "--quick", "--seeds", "1", "--only", "shared, 3", "none"]
    monkeypatch.setattr(benchmark, "ROUNDS", {"private": 3, "plain": 3})
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
    benchmark.main()
    rows = json.loads((tmp_path / "privacy.json").read_text())["rows"]
    assert {row["work"] for row in rows} >= {"School, shared", "Landmine, shared"}
    assert all(row["noise"] > 0 for row in rows if row["epsilon"] == 3.0)
