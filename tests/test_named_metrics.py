"""Metrics by name: what they are, which way is better, and where they are not defined."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._measures import auc
from fedgradnorm.tasks._named_metrics import METRICS, higher_is_better

pytest.importorskip("torchmetrics", reason="pip install 'fedgradnorm[metrics]'")

MAKERS: dict[str, Any] = {
    "classification": lambda **o: fgn.classification(3, **o),
    "binary": fgn.binary,
    "multilabel": lambda **o: fgn.multilabel(3, **o),
    "ordinal": lambda **o: fgn.ordinal(3, **o),
    "regression": lambda **o: fgn.regression(2, **o),
}
PAIRS = [
    (name, kind)
    for name, known in METRICS.items()
    for kind in MAKERS
    if known.measure is not None and known.fits(KINDS[kind])
]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def split(kind: str, rows: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Random outputs, targets, and outputs that are right."""
    scores = drawn(rows, 3)
    if kind == "classification":
        y = torch.arange(rows) % 3
        return scores, y, 50 * torch.nn.functional.one_hot(y, 3).double()
    if kind == "ordinal":  # above class 0?, and how much less likely above class 1
        y = torch.arange(rows) % 3
        right = torch.stack([50.0 * (2 * (y > 0) - 1), torch.where(y > 1, -50.0, 100.0)], dim=1)
        return scores[:, :2], y, right.double()
    if kind == "regression":
        return scores[:, :2], drawn(rows, 2, seed=1), drawn(rows, 2, seed=1)
    y = ((torch.arange(rows)[:, None] + torch.arange(3)) % 2).double()
    if kind == "binary":
        return scores[:, :1], y[:, 0].long(), 50 * (2 * y[:, :1] - 1)
    return scores, y, 50 * (2 * y - 1)


def measured(name: str, kind: str, output: Tensor, target: Tensor) -> float:
    value = MAKERS[kind](metrics=[name]).measure(output, target)[name]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_the_right_answers_are_the_best_and_better_than_random_ones(name: str, kind: str) -> None:
    random, target, right = split(kind)
    best, worse = (measured(name, kind, output, target) for output in (right, random))
    assert best == pytest.approx(1.0 if higher_is_better(name) else 0.0, abs=1e-6)
    assert (best > worse) is higher_is_better(name)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_split_with_few_rows_or_one_class_has_a_number(name: str, kind: str, rows: int) -> None:
    """Tests turn warnings into errors, so this says that there are none, too."""
    output, target, _ = split(kind)
    few = target[:rows] if kind == "regression" else target[:1].expand(rows, *target.shape[1:])
    assert math.isfinite(measured(name, kind, output[:rows].float(), few))


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_outputs_that_are_no_numbers_have_no_metric(name: str, kind: str) -> None:
    output, target, _ = split(kind)
    assert math.isnan(measured(name, kind, output * math.nan, target))


@pytest.mark.parametrize("name", [n for n, kind in PAIRS if kind == "classification"])
def test_outputs_are_logits_whatever_their_range(name: str) -> None:
    """Small ones must not be taken for probabilities."""
    output, target, _ = split("classification")
    small = output.sigmoid() / 3
    shifted = measured(name, "classification", small - 9, target)
    assert measured(name, "classification", small, target) == pytest.approx(shifted, rel=1e-9)


@pytest.mark.parametrize("name", ["balanced_accuracy", "auroc", "mcc"])
def test_one_output_and_two_say_the_same_of_two_classes(name: str) -> None:
    output, target, _ = split("binary")
    two = torch.cat([torch.zeros_like(output), output], dim=1)
    as_classes = fgn.classification(2, metrics=[name]).measure(two, target)[name]
    assert measured(name, "binary", output, target) == pytest.approx(as_classes, rel=1e-6)


def test_the_numbers_are_those_of_the_definitions() -> None:
    output, target = drawn(80, 3), torch.arange(80) % 4 % 3
    task = fgn.classification(3, metrics=["balanced_accuracy", "f1", "auroc"])
    found, answer = task.measure(output, target), output.argmax(dim=1)
    hit = [(answer[target == c] == c).double().mean() for c in range(3)]
    assert found["balanced_accuracy"] == pytest.approx(float(sum(hit)) / 3, rel=1e-6)
    f1 = [
        2 * float(((answer == c) & (target == c)).sum())
        / float((answer == c).sum() + (target == c).sum())
        for c in range(3)
    ]  # fmt: skip
    assert found["f1"] == pytest.approx(np.mean(f1), rel=1e-6)
    p = output.softmax(dim=1)
    areas = [auc(torch.stack([-p[:, c], p[:, c]], dim=1), (target == c).long()) for c in range(3)]
    assert found["auroc"] == pytest.approx(float(sum(areas)) / 3, rel=1e-6)
    numbers = fgn.regression(3, metrics=["rmse"]).measure(output, output.flip(0))
    assert numbers["rmse"] == pytest.approx(float((output - output.flip(0)).square().mean().sqrt()))


def test_calibration_is_the_gap_between_confidence_and_accuracy() -> None:
    sure = torch.tensor([[math.log(4.0), 0.0]] * 10, dtype=torch.float64)  # 0.8 for class 0
    right_half = torch.tensor([0, 1] * 5)
    task = fgn.classification(2, metrics=["calibration_error"])
    assert task.measure(sure, right_half)["calibration_error"] == pytest.approx(0.3)


def test_a_class_without_rows_is_left_out_of_a_ranking() -> None:
    output, target, _ = split("classification")
    some = target < 2
    found = measured("auroc", "classification", output[some], target[some])
    p = output[some].softmax(dim=1)
    areas = [
        auc(torch.stack([-p[:, c], p[:, c]], dim=1), (target[some] == c).long()) for c in (0, 1)
    ]
    assert found == pytest.approx(float(sum(areas)) / 2, rel=1e-6)


def test_the_metrics_that_a_task_always_has_may_be_named_too() -> None:
    task = fgn.regression(1, metrics=["r2", "mae", "rmse"])
    assert sorted(task.metrics) == ["mae", "r2", "rmse"]


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("classification", "balanced_acuracy", "did you mean 'balanced_accuracy'"),
        ("classification", "rmse", "unknown metric of a classification task 'rmse'"),
        (
            "regression",
            "f1",
            "unknown metric of a regression task 'f1'.*one of: mae, r2, mse, rmse",
        ),
    ],
)
def test_a_name_that_the_task_has_not_is_answered_with_the_nearest(
    kind: str, name: str, said: str
) -> None:
    with pytest.raises(fgn.ConfigError, match=said):
        MAKERS[kind](metrics=[name])


def test_without_torchmetrics_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(
        fgn.ConfigError, match=r"'f1' needs torchmetrics: pip install 'fedgradnorm\["
    ):
        fgn.classification(2, metrics=["f1"])
    assert sorted(fgn.regression(1, metrics=["mae"]).metrics) == ["mae", "r2"]


def clients() -> list[fgn.Client]:
    return [
        toys.client("corner", 48, metrics=["f1", "auroc"]),
        toys.client("side", 30, metrics=["calibration_error"]),
        toys.client("place", 24, metrics=["rmse"]),
    ]


def test_a_run_records_saves_and_resumes_them(tmp_path) -> None:
    def train(**options: Any) -> fgn.Run:
        how = {"rounds": 4, "batch_size": 8, "device": "cpu", **options}
        return flat.train(toys.network(), clients(), **how)

    whole = train(executor="loop")
    toys.interrupted(train, at=2, folder=tmp_path / "run", executor="loop")
    resumed = train(folder=tmp_path / "run", resume=True, executor="loop")
    columns = ["f1", "auroc", "calibration_error", "rmse"]
    for other in (resumed, fgn.load(tmp_path / "run"), train(executor="joint")):
        left, right = (one.history[columns].to_numpy(float) for one in (whole, other))
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-9)
    assert whole.summary().loc["corner", "f1"] > 0
