"""The published runs, recomputed with pandas, against every way to show them."""

from __future__ import annotations

import json
import math
import re
import tarfile
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from typer.testing import CliRunner

from fedgradnorm._cli.app import app
from fedgradnorm._report.arms import LOSS, SCORE
from fedgradnorm._report.comparison import comparison_of
from fedgradnorm._report.figures import curves as figures
from fedgradnorm._report.figures.curves import figure
from fedgradnorm._report.grid import to_csv
from fedgradnorm._report.page.html_page import page_of
from fedgradnorm._report.record import records_of
from fedgradnorm._report.tables.comparison_grids import all_grids, tasks_grid
from fedgradnorm._report.tables.summaries import task_rows
from fedgradnorm._stored.groups import group
from fedgradnorm._stored.reader import collect
from fedgradnorm.experiments._entries import own_name
from fedgradnorm.experiments._sweep import point_name

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ARCHIVES = sorted(RESULTS.glob("*/runs.tar.xz"))
METRICS = ("accuracy", "nme", "mae")  # the first that a task has is the one shown


def recomputed(place: Path) -> pd.DataFrame:
    """A row per run and client: label, seed, last training loss, last held-out metric, weight."""
    rows = []
    for path in sorted(place.glob("*/*/metrics.csv")):
        config = tomllib.loads((path.parent / "config.toml").read_text())
        frame = pd.read_csv(path)
        words = (
            config["method"],
            own_name(config.get("own", {})),
            point_name(config.get("point", {})),
        )
        scales = config["data"].get("loss_scale", {})
        evaluated = frame[frame.split != "batch"]
        for client, mine in evaluated.groupby("client", sort=False):
            last = {split: part.iloc[-1] for split, part in mine.groupby("split")}
            shown = last["test"] if "test" in last else last["validation"]
            metric = next(m for m in METRICS if m in shown and not math.isnan(shown[m]))
            rows.append({
                "label": " ".join(filter(None, words)), "seed": config["seed"], "task": client,
                "loss": last["train"].loss / scales.get(client, 1.0), "score": shown[metric],
                "weight": last["train"].weight, "metric": metric,
            })  # fmt: skip
    return pd.DataFrame(rows)


def half(values: pd.Series) -> float:
    return float(scipy.stats.t.ppf(0.975, len(values) - 1) * values.sem())


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def check(found: dict[tuple[str, str], tuple], truth: pd.DataFrame) -> None:
    """(label, task) -> seeds, loss, its half width, score: all of the truth, and nothing beside."""
    groups = truth.groupby(["label", "task"])
    assert set(found) == set(groups.groups)
    for key, mine in groups:
        seeds, loss, spread, score = found[key]
        assert seeds == len(mine)
        assert loss == close(mine.loss.mean())
        assert spread == pytest.approx(half(mine.loss), rel=3e-4)
        assert score == close(mine.score.mean())


def check_rows(rows, truth: pd.DataFrame) -> None:
    """The table of ``report``, on the terminal and on the page."""
    numbers = ((r, (r.seeds, r.last_loss.mean, r.last_loss.half, r.value.mean)) for r in rows)
    check({(row.method, row.task): found for row, found in numbers}, truth)


def check_page(page, truth: pd.DataFrame) -> None:
    check_rows(page.rows, truth)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.html, re.DOTALL)[1])
    means = truth.groupby(["label", "task"]).loss.mean()
    drawn = {}
    for panel in data["sections"]["curves"]:
        for series in panel["series"]:
            if panel["view"] == "Loss" and series["role"] == "train":
                key = data["methods"][series["method"]], data["tasks"][panel["task"]]
                drawn[key] = series["y"][-1]
    assert set(drawn) == set(means.index)
    assert all(drawn[key] == pytest.approx(value, rel=1e-3) for key, value in means.items())


def check_figure(records, truth: pd.DataFrame, monkeypatch) -> None:
    kept = []
    monkeypatch.setattr(figures, "save", lambda drawing, path: kept.append(drawing) or path)
    figure(records, "f.png")
    found = {
        (line.get_label(), axes.get_title()): line.get_ydata()[-1]
        for axes in kept[0].axes
        if axes.get_title()
        for line in axes.lines
    }
    means = truth.groupby(["label", "task"]).loss.mean()
    assert set(found) == set(means.index)
    assert all(found[key] == close(value) for key, value in means.items())


def check_comparison(comparison, truth: pd.DataFrame) -> None:
    found = {}
    for arm in comparison.arms:
        for task in comparison.tasks:
            samples = arm.tasks(task).values()
            losses = pd.Series([LOSS.of(sample) for sample in samples])
            score = float(np.mean([SCORE.of(sample) for sample in samples]))
            found[arm.label, task] = len(losses), losses.mean(), half(losses), score
    check(found, truth)
    grid = tasks_grid(comparison)
    method, task, loss = (grid.columns.index(c) for c in ("method", "task", "training loss"))
    shown = {(row[method].text, row[task].text): row[loss].numbers[""] for row in grid.rows}
    means = truth.groupby(["label", "task"]).loss.mean()
    assert set(shown) == set(means.index)
    assert all(shown[key] == close(value) for key, value in means.items())


def check_tests(comparison, truth: pd.DataFrame) -> None:
    """p-values are scipy's, of the same seeds, against the baseline at the same point."""
    by_seed = truth.pivot(index=["label", "task"], columns="seed", values="loss").T
    for arm in comparison.arms:
        contest = comparison.against(arm, comparison.baseline)
        if contest is None:
            continue
        base = next(
            other.label
            for other in comparison.arms
            if other.method == comparison.baseline
            and point_name(other.point) in ("", point_name(arm.point))
        )
        raw = np.array([
            scipy.stats.ttest_rel(by_seed[arm.label, task], by_seed[base, task]).pvalue
            for task in comparison.tasks
        ])  # fmt: skip
        order = raw.argsort()
        holm = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1)).clip(max=1)
        found = contest.p_values(LOSS)
        shown = [found[comparison.tasks[i]] for i in order]
        assert shown == pytest.approx(list(holm), rel=1e-5, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.parent.name)
def test_every_way_shows_the_same(archive, tmp_path, monkeypatch):
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    truth, (runs, nowhere) = recomputed(tmp_path), collect([tmp_path])
    assert len(truth)
    assert not nowhere
    records, comparison = records_of(group(runs)[0]), comparison_of(runs)
    check_rows(task_rows(records), truth)
    check_page(page_of(runs), truth)
    check_figure(records, truth, monkeypatch)
    check_comparison(comparison, truth)
    check_tests(comparison, truth)
    for grid in all_grids(comparison):
        path = archive.parent / f"{grid.name}.csv"
        if path.exists():
            assert to_csv(grid) == path.read_text(), grid.name


def test_the_commands_print_them(tmp_path):
    with tarfile.open(RESULTS / "precision-signals" / "runs.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    truth = recomputed(tmp_path)
    means = truth.groupby(["label", "task"]).loss.mean()
    for command in (
        ["report", str(tmp_path), "--out", str(tmp_path / "f.png")],
        ["compare", "--from", str(tmp_path), "--out", str(tmp_path / "out")],
    ):
        shown = CliRunner().invoke(app, command)
        assert shown.exit_code == 0, shown.output
        for value in means:
            digits = 1 if value >= 100 else 2 if value >= 10 else 3
            assert f"{value:.{digits}f}" in shown.output, (command, value)
    assert f"page:    {tmp_path / 'out' / 'report.html'}" in shown.output
    assert (tmp_path / "out" / "report.html").read_bytes().startswith(b"<!doctype html>")
