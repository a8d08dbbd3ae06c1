"""The published runs, recomputed with pandas, against every way to show them."""

from __future__ import annotations

import json
import math
import re
import tarfile
import tomllib
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from typer.testing import CliRunner

from fedgradnorm._cli.app import app
from fedgradnorm._report import figures
from fedgradnorm._report.figures import panels_figure
from fedgradnorm._report.frame import report_of
from fedgradnorm._report.page import page_of
from fedgradnorm._report.tables import tasks_grid, write_tables
from fedgradnorm._report.words import in_words
from fedgradnorm._runs.reader import collect
from fedgradnorm.experiments._variants import own_name, point_name

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


def check_frame(report, truth: pd.DataFrame) -> None:
    """The table that everything is made from."""
    keys = ["variant", "seed", "task"]
    found = report.frame.set_index(keys)[["loss", "score", "weight", "metric"]].sort_index()
    wanted = truth.rename(columns={"label": "variant"}).set_index(keys).sort_index()
    pd.testing.assert_frame_equal(found, wanted[found.columns], rtol=1e-12)


def check_tasks(report, truth: pd.DataFrame) -> None:
    """The table of tasks: means and intervals over seeds."""
    grid = tasks_grid(report)
    groups = truth.groupby(["label", "task"])
    rows = {(row[1].text, row[0].text): row for row in grid.rows}
    assert set(rows) == set(groups.groups)
    for key, mine in groups:
        for column, values in (("training loss", mine.loss), ("held-out", mine.score)):
            found = rows[key][grid.columns.index(column)]
            factor = 100 if found.text.endswith("%") else 1
            mean, spread = factor * values.mean(), factor * half(values)
            assert found.numbers[""] == close(mean)
            assert found.numbers["_n"] == len(values)
            ends = found.numbers["_low"], found.numbers["_high"]
            assert ends == pytest.approx((mean - spread, mean + spread), nan_ok=True)


def check_page(report, truth: pd.DataFrame) -> None:
    html = page_of(report).html
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    means = truth.groupby(["label", "task"]).loss.mean()
    drawn = {}
    for panel in data["sections"]["curves"]:
        for series in panel["series"]:
            if panel["view"] == "Loss" and series["role"] == "train":
                key = data["methods"][series["method"]], data["tasks"][panel["task"]]
                drawn[key] = series["y"][-1]
    assert set(drawn) == set(means.index)
    assert all(drawn[key] == pytest.approx(value, rel=1e-3) for key, value in means.items())
    grid = tasks_grid(report)
    assert all(escape(cell.text) in html for row in grid.rows for cell in row if cell.numbers)


def check_figure(report, truth: pd.DataFrame, monkeypatch) -> None:
    kept = []
    monkeypatch.setattr(figures, "save", lambda drawing, path, *_: kept.append(drawing) or path)
    panels_figure(report, "f.png")
    if report.points:
        return
    rows = len(kept[0].axes) // len(report.tasks)
    losses = 1 if len(report.variants) > 1 else 0  # after the held-out metric, if there is a choice
    names = {in_words(name): name for name in report.standouts()}
    found = {
        (names[line.get_label()], axes.get_title()): line.get_ydata()[-1]
        for axes in kept[0].axes[losses * len(report.tasks) :][: len(report.tasks)]
        for line in axes.lines
        if line.get_label() in names
    }
    assert rows >= 2
    means = truth.groupby(["label", "task"]).loss.mean()
    assert set(found) == {key for key in means.index if key[0] in report.standouts()}
    assert all(value == pytest.approx(means[key], rel=1e-3) for key, value in found.items())


def check_effects(report, truth: pd.DataFrame) -> None:
    """Effects and p-values are pandas' and scipy's, against the baseline at the same point."""
    points = {name: point_name(one.point) for name, one in report.groups.items()}
    metrics = truth.drop_duplicates("task").set_index("task").metric
    for measure in ("loss", "score"):
        table = truth.pivot(index="seed", columns=["label", "task"], values=measure)
        raws, shown = [], []
        for variant, mine in report.effects[measure].groupby("variant"):
            (base,) = set(mine.base)
            assert report.groups[base].method == report.baseline
            assert points[base] in ("", points[variant])
            both = [pd.concat([table[variant, t], table[base, t]], axis=1).dropna().to_numpy().T
                    for t in mine.task]  # fmt: skip
            raws += [scipy.stats.ttest_rel(*pair).pvalue for pair in both]
            shown += list(mine.p)
            for row, (ours, theirs) in zip(mine.itertuples(), both, strict=True):
                points_of = measure == "score" and metrics[row.task] == "accuracy"
                change = 100 * (ours - theirs) if points_of else 100 * (theirs - ours) / theirs
                assert row.effect == close(change.mean())
                if change.std() > 0:
                    error = scipy.stats.sem(change)
                    ends = scipy.stats.t.interval(0.95, len(change) - 1, change.mean(), error)
                    assert (row.low, row.high) == pytest.approx(ends)
        raw, found = np.array(raws), np.array(shown)
        order = raw.argsort()  # where all seeds are equal, scipy has no p-value: it is the largest
        holm = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1)).clip(max=1)
        known = ~np.isnan(raw[order])
        assert found[order][known] == pytest.approx(holm[known], rel=1e-6, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.parent.name)
def test_every_way_shows_the_same(archive, tmp_path, monkeypatch):
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    truth, (runs, nowhere) = recomputed(tmp_path), collect([tmp_path])
    assert len(truth)
    assert not nowhere
    report = report_of(runs)
    check_frame(report, truth)
    check_tasks(report, truth)
    check_page(report, truth)
    check_figure(report, truth, monkeypatch)
    check_effects(report, truth)
    write_tables(report, tmp_path / "tables")
    for path in archive.parent.glob("*.csv"):
        assert (tmp_path / "tables" / path.name).read_text() == path.read_text(), path


def test_the_commands_print_them(tmp_path):
    with tarfile.open(RESULTS / "precision-signals" / "runs.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    truth = recomputed(tmp_path)
    means = truth.groupby(["label", "task"])[["score"]].mean()
    assert set(truth.metric) == {"accuracy"}
    for command in (
        ["report", str(tmp_path), "--out", str(tmp_path / "f.html")],
        ["compare", "--from", str(tmp_path), "--out", str(tmp_path / "out")],
    ):
        shown = CliRunner().invoke(app, command)
        assert shown.exit_code == 0, shown.output
        for value in means.score:  # a sweep's points next to each other, held out
            assert f"{100 * value:.1f}" in shown.output, command
    assert f"page:    {tmp_path / 'out' / 'report.html'}" in shown.output
    assert (tmp_path / "out" / "report.html").read_bytes().startswith(b"<!doctype html>")
