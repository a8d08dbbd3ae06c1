"""The page on differential privacy: programs run, configs are read, promises have tests."""

from __future__ import annotations

import ast
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


ATTACKS, LEDGER, ROUND = "test_attacks.py", "test_ledger_laws.py", "test_private_round.py"
TESTS = {
    "Noise": [(ATTACKS, "test_dp1"), (ATTACKS, "test_dp7"), (LEDGER, "Orders")],
    "A repeated order": [(ATTACKS, "test_dp4")],
    "Several runs": [(ATTACKS, "test_dp2"), (LEDGER, "Charging")],
    "First losses": [(ATTACKS, "test_dp3"), (ATTACKS, "test_an_answer_that_was_charged")],
    "A crash": [(ATTACKS, "test_a_kill_in_the_middle"), (ATTACKS, "test_an_answer_that_was_c")],
    "A deleted": [(ATTACKS, "test_dp10")],
    "A custom loss": [(ROUND, "test_a_custom_loss_sees_one_example")],
    "An example that": [
        (ATTACKS, "test_dp8_a_client_whose_numbers_overflow"),
        (ATTACKS, "test_dp8_an_example_that_raises"),
        (ATTACKS, "test_dp8_a_failure_of_the_network"),
    ],
    "Scaling": [(ATTACKS, "test_dp5_whatever"), (ATTACKS, "test_dp5_public")],
    "A best round": [(ATTACKS, "test_dp9")],
    "Dropout": [
        (ATTACKS, "test_dp6_dropout"),
        (ATTACKS, "test_dp6_a_layer_that_seldom_draws"),
        (ATTACKS, "test_a_layer_that_mixes_examples"),
        (ROUND, "test_a_layer_that_mixes"),
    ],
    "Starting": [(ATTACKS, "test_a_run_on_the_same_data")],
    "delta": [(ATTACKS, "test_delta_and_epsilon")],
    "epsilon": [(ATTACKS, "test_delta_and_epsilon")],
}
"""The tests of each line of the table of threats, by how their names begin."""


def test_every_threat_has_a_test_that_tries_it() -> None:
    (table,) = re.findall(r"\| threat \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE)
    lines = [line.strip("| ") for line in table.splitlines()]
    assert [[k for k in TESTS if line.startswith(k)] for line in lines] == [[k] for k in TESTS]
    for file, start in (one for tests in TESTS.values() for one in tests):
        tree = ast.parse((ROOT / "tests" / "privacy" / file).read_text(encoding="utf-8"))
        names = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        assert any(name.startswith(start) for name in names), start


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
