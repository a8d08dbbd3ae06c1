"""Scores are shown with those of the constant baseline, by the metric that a task names."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._report.frame import read_report
from fedgradnorm._report.grid import to_terminal
from fedgradnorm._report.headline import headline
from fedgradnorm._report.page import write_page
from fedgradnorm._report.tables import tasks_grid
from fedgradnorm.data import client_from_arrays

X = np.random.default_rng(6).normal(size=(60, toys.FEATURES))
RAIN = (X[:, 0] > 1.2).astype(int)
PRICE = 1000 * X[:, 1] + 5000


def clients() -> list[fgn.Client]:
    price = client_from_arrays(
        "price",
        fgn.regression(1),
        (X[:40], PRICE[:40]),
        test=(X[40:], PRICE[40:]),
        standardize=True,
    )
    rain = fgn.binary(pos_weight="balanced", metrics=["auroc"])
    return [
        fgn.Client("rain", rain, (X[:40], RAIN[:40]), test=(X[40:], RAIN[40:])),
        fgn.Client("dry", fgn.binary(pos_weight="balanced"), (X[:40], RAIN[:40])),
        price,
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    place, made = tmp_path_factory.mktemp("runs"), []
    for name, weighting in (("a", fgn.Equal()), ("b", fgn.GradNorm())):
        made.append(place / name)
        how = {"rounds": 3, "lr": 0.01, "device": "cpu", "weighting": weighting}
        flat.train(toys.network(), clients(), folder=made[-1], **how)
    return made


def test_the_constant_baseline_is_the_majority_class_or_the_mean(folders) -> None:
    run = fgn.load(folders[0])
    shown = run.summary()["baseline"]
    assert shown["rain"] == 0.5  # the area under the curve of a guess
    assert shown["dry"] == pytest.approx(1 - RAIN[:40].mean())
    mean = np.abs(PRICE[40:] - PRICE[:40].mean()).mean()
    assert shown["price"] == pytest.approx(mean)  # in the target's own units
    assert run.summary().loc["price", "mae"] == pytest.approx(
        np.abs(run.predict("price", X[40:])[:, 0] - PRICE[40:]).mean(), rel=1e-5
    )


def test_tables_show_the_named_metric_and_the_constant_baseline(folders, tmp_path) -> None:
    report = read_report(folders)
    metrics = report.frame.drop_duplicates("task").set_index("task").metric.to_dict()
    assert metrics == {"rain": "auroc", "dry": "accuracy", "price": "mae"}
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(*to_terminal(tasks_grid(report), 160))
    text = console.export_text()
    assert "AUROC 0.500" in text
    page = tmp_path / "page.html"
    write_page(folders, page)
    html = page.read_text(encoding="utf-8")
    assert "constant: the score of always predicting the majority class" in html
    assert "AUROC 0.500" in html
    grid = tasks_grid(report)
    place = grid.columns.index("constant")
    assert {row[0].text: row[place].text for row in grid.rows if row[place].text != "-"} == {
        "rain": "AUROC 0.500",
        "price": f"MAE {np.abs(PRICE[40:] - PRICE[:40].mean()).mean():.1f}",
    }
    alone = headline(read_report(folders[:1]).frame)
    assert "beats the constant baseline on" in alone
