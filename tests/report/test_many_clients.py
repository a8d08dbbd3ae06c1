"""Many clients: a report of their distribution, never a line or a curve for each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgradnorm._cli import app
from fedgradnorm._report.frame import read_report
from fedgradnorm._report.page import make_page
from fedgradnorm._runs.history import History
from fedgradnorm._runs.manifest import FORMAT
from fedgradnorm._runs.reader import (
    LINES,
    StoredRun,
    is_many,
    line_name,
    pooled,
    pooled_runs,
    read_run,
)
from fedgradnorm._runs.spread import MANY, groups_of, spread_rows, spread_table

CLIENTS = 300
KINDS = {"smile": "accuracy", "age": "mae"}


def write(
    parent: Path, method: str, seed: int, gain: float, count: int = CLIENTS, **manifest: Any
) -> Path:
    """A run of many clients that kept quantiles, and the rows of the ends of everybody."""
    generator = np.random.default_rng(0)
    hard = generator.uniform(0.5, 2.0, count)
    infos, rows = {}, []
    for k in range(count):
        task = list(KINDS)[k % 2]
        infos[f"client-{k}"] = {
            "kind": "classification" if task == "smile" else "regression",
            "task": task,
            "baseline": {KINDS[task]: 0.5 if task == "smile" else 1.0},
            "fingerprint": f"{k}",
            **manifest,
        }
    for number in (0, 10, 20):
        for name, (k, level) in zip(infos, enumerate(hard), strict=True):
            left = level * (1 - 0.02 * number * (1 + gain * (k % 3 - 0.5)))
            metric = KINDS[infos[name]["task"]]
            value = max(0.0, 1 - left / 2) if metric == "accuracy" else left
            for split in ("train", "test"):
                where = {"round": number, "epoch": number / 5, "client": name, "split": split}
                rows.append({**where, "loss": left + 0.01 * seed, "weight": level, metric: value})
    history, spread = History(["accuracy", "mae"]), spread_table()
    history.append(row for row in rows if row["round"] != 10 or row["client"] == "client-3")
    spread.append(spread_rows(rows, groups_of(infos), ["accuracy", "mae"]))
    folder = parent / f"{method}-{seed}"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text(history.text())
    (folder / "spread.csv").write_text(spread.text())
    given = {
        "format": FORMAT,
        "finished": True,
        "settings": {"seed": seed, "share": "none" if method == "local" else "all"},
        "weighting": {"name": "Equal"},
        "clients": infos,
        "rounds": 20,
    }
    (folder / "run.json").write_text(json.dumps(given))
    text = f'name = "crowd"\nmethod = "{method}"\nseed = {seed}\n'
    text += '[data]\nsource = "files"\n'
    (folder / "config.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd")
    for seed in (0, 1):
        write(folder, "fedrep", seed, 0.0)
        write(folder, "fedgradnorm", seed, 0.4)
        write(folder, "local", seed, -0.4)
    return folder


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return dict(json.loads(found.group(1)))


def test_a_pooled_run_has_the_quantiles_of_each_task(place: Path) -> None:
    run = read_run(place / "fedrep-0")
    assert is_many(run)
    made = pooled(run)
    assert made.clients == [line_name(task, line) for task in KINDS for line in LINES]
    last = {
        row["client"]: row for row in made.rows if row["round"] == 20 and row["split"] == "test"
    }
    ends = [row for row in run.rows if row["round"] == 20 and row["split"] == "test"]
    right = [row["accuracy"] for row in ends if "accuracy" in row]
    errors = [row["mae"] for row in ends if "mae" in row]
    assert last["smile (median)"]["accuracy"] == np.median(right)
    assert last["smile (worst tenth)"]["accuracy"] == np.quantile(right, 0.1)
    assert last["smile (worst)"]["accuracy"] == min(right)
    assert last["age (worst tenth)"]["mae"] == np.quantile(errors, 0.9)
    assert last["age (best tenth)"]["mae"] == np.quantile(errors, 0.1)
    assert made.judged["age (median)"].constant == {"mae": 1.0}


def test_few_clients_are_not_pooled_and_older_runs_by_their_rows(place: Path) -> None:
    run = read_run(place / "fedrep-0")
    few = [row for row in run.rows if int(row["client"].removeprefix("client-")) < MANY]
    small = StoredRun("small", "fedrep", 0, few)
    assert pooled_runs([small])[0] is small
    ends = StoredRun("ends", "fedrep", 0, run.rows, run.manifest)  # an older run has no quantiles
    assert shown(pooled(ends)) == shown(pooled(run))


def shown(run: StoredRun) -> list[str]:
    return [str(row) for row in run.rows if row["round"] != 10]


def test_a_factor_on_losses_is_taken_out_of_quantiles(tmp_path: Path) -> None:
    plain = pooled(read_run(write(tmp_path / "a", "fedrep", 0, 0.0, 60)))
    scaled = pooled(read_run(write(tmp_path / "b", "fedrep", 0, 0.0, 60, loss_scale=4.0)))
    assert scaled.scaled
    for one, four in zip(plain.rows, scaled.rows, strict=True):
        assert four["loss"] == one["loss"] / 4


def test_methods_are_compared_on_quantiles(place: Path) -> None:
    report = read_report([place], "fedrep")
    assert len(report.tasks) == len(KINDS) * len(LINES)
    assert report.notes == ()


def test_the_page_draws_medians_with_a_band_and_names_no_client(place: Path) -> None:
    page = make_page([place])
    assert "client-" not in page.html
    assert "3 methods, 2 tasks, 300 clients, 6 runs" in page.html
    assert "median over clients" in page.html
    assert ">nan<" not in page.html
    headline = re.search(r"<h1[^>]*>(.*?)</h1>", page.html, re.DOTALL)
    assert headline is not None
    assert "8 tasks" not in headline.group(1)  # it speaks of the medians
    panels = data_of(page.html)["sections"]["curves"]
    assert {panel["task"] for panel in panels} == {0, len(LINES)}
    first = panels[0]["series"][0]
    inside = zip(first["lo"], first["y"], first["hi"], strict=True)
    assert all(low <= y <= high for low, y, high in inside)
    assert first["lo"] != first["hi"]
    assert page.report.frame.groupby(["variant", "task"]).ngroups == len(KINDS) * len(LINES) * 3


@pytest.mark.parametrize("words", [["report"], ["compare", "--from"]])
def test_the_terminal_shows_it(words: list[str], tmp_path: Path) -> None:
    place = tmp_path / "runs"
    for method in ("fedrep", "fedgradnorm", "local"):
        write(place, method, 0, 0.1, 60)
    out = tmp_path / "out.html" if words == ["report"] else tmp_path / "out"
    result = CliRunner().invoke(app, [*words, str(place), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "smile (worst tenth)" in result.stdout
    assert "constant" in result.stdout
    assert "client-" not in result.stdout
    if words != ["report"]:
        lines = (out / "tables" / "tasks.csv").read_text().splitlines()
        assert len(lines) == 1 + len(KINDS) * len(LINES) * 3
