"""A task's loss and metrics against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedgradnorm import ConfigError, classification, regression

LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-2.0, 4.0, 1.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1])
TARGETS = LOGITS.flip(0) + 0.25


def test_classification_is_cross_entropy_and_accuracy() -> None:
    task = classification(3)
    torch.testing.assert_close(task.loss(LOGITS, LABELS), F.cross_entropy(LOGITS, LABELS))
    assert float(task.metrics["accuracy"](LOGITS, LABELS)) == pytest.approx(2 / 3)
    assert task.form.answer(LOGITS).tolist() == [0, 2, 1]


def test_regression_is_mean_squared_error_with_mae_and_r2() -> None:
    task = regression(3)
    torch.testing.assert_close(task.loss(LOGITS, TARGETS), F.mse_loss(LOGITS, TARGETS))
    torch.testing.assert_close(task.metrics["mae"](LOGITS, TARGETS), F.l1_loss(LOGITS, TARGETS))
    assert task.form.answer(LOGITS) is LOGITS


def test_r2_is_one_for_the_truth_and_zero_for_the_mean() -> None:
    r2 = regression(3).metrics["r2"]
    assert float(r2(TARGETS, TARGETS)) == 1
    assert float(r2(TARGETS.mean(0).expand_as(TARGETS), TARGETS)) == pytest.approx(0)


@pytest.mark.parametrize("task", [classification(3), regression(3)], ids=lambda t: t.kind)
def test_the_loss_is_the_mean_of_the_rows_losses(task: Any) -> None:
    target = LABELS if task.kind == "classification" else TARGETS
    rows = task.losses(LOGITS, target)
    assert rows.shape == (3,)
    torch.testing.assert_close(rows.mean(), task.loss(LOGITS, target))


@pytest.mark.parametrize("make", [classification, regression])
def test_loss_scale_multiplies_the_loss_and_leaves_metrics_alone(make: Any) -> None:
    target = LABELS if make is classification else TARGETS
    plain, loud = make(3), make(3, loss_scale=1000.0)
    torch.testing.assert_close(loud.loss(LOGITS, target), 1000 * plain.loss(LOGITS, target))
    for name, metric in plain.metrics.items():
        assert float(loud.metrics[name](LOGITS, target)) == float(metric(LOGITS, target))


def test_a_loss_and_metrics_of_ones_own_stand_beside_the_usual() -> None:
    task = regression(
        3,
        loss=lambda output, target: (output - target).abs().sum(dim=1),
        metrics={"worst": lambda output, target: (output - target).abs().max()},
    )
    assert sorted(task.metrics) == ["mae", "r2", "worst"]
    expected = (LOGITS - TARGETS).abs().sum(1).mean()
    torch.testing.assert_close(task.loss(LOGITS, TARGETS), expected)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_loss_scale_is_a_positive_number(scale: float) -> None:
    with pytest.raises(ConfigError, match="loss_scale must be a positive number"):
        regression(1, loss_scale=scale)


def test_a_regression_needs_an_output() -> None:
    with pytest.raises(ConfigError, match="at least 1 outputs, not 0"):
        regression(0)
