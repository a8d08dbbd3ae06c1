"""Weights keyed by task: what the inner weighting is told of a task's clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedgradnorm.weighting import Equal, GradNorm, Needs, Signals, Weighting
from fedgradnorm.weighting._by_task import ByTask
from fedgradnorm.weighting._products import MGDA
from weighting.laws import NAMES, bound, draw, tasks_of


class Listening(Weighting):
    """Keeps what it was told."""

    needs = Needs.GRAM | Needs.GRADIENT

    def weigh(self, signals: Signals) -> Tensor:
        self.told = signals
        return torch.ones_like(signals.active, dtype=torch.float64)


def told(signals: Signals) -> Signals:
    inner = Listening()
    bound(lambda: tasks_of(inner)).update(signals)
    return inner.told


def with_gradients(signals: Signals, spoil: float = 0.0) -> Signals:
    updates = torch.arange(20, dtype=torch.float64).reshape(5, 4).sin()
    updates = torch.where(signals.active[:, None], updates, spoil)
    return replace(signals, gradients=updates, gram=updates @ updates.T)


def test_a_task_is_the_mean_of_its_active_clients() -> None:
    signals = replace(draw(0)[0], active=torch.tensor([True, True, False, True, False]))
    heard = told(signals)
    assert heard.active.tolist() == [True, True, False]
    for key in ("loss", "loss_ratio", "grad_norm"):
        own, column = getattr(signals, key), getattr(heard, key)
        torch.testing.assert_close(column[:2], torch.stack([own[:2].mean(), own[3]]))
    torch.testing.assert_close(
        heard.size[:2], torch.stack([signals.size[:2].sum(), signals.size[3]])
    )


def test_a_tasks_gram_is_that_of_its_mean_gradient() -> None:
    heard = told(with_gradients(draw(1)[0]))
    torch.testing.assert_close(heard.gram, heard.gradients @ heard.gradients.T)


def test_the_gradient_of_an_absent_client_is_never_read() -> None:
    signals = replace(draw(2)[0], active=torch.tensor([True, False, True, True, False]))
    clean, spoilt = (told(with_gradients(signals, value)) for value in (0.0, torch.nan))
    assert torch.equal(clean.gram, spoilt.gram)
    assert torch.equal(clean.gradients, spoilt.gradients)


@pytest.mark.parametrize("tasks", ["aabb", "aaabb"])
def test_mgda_by_task_steps_along_the_tasks_means_where_tasks_have_equally_many(tasks: str) -> None:
    """Yang et al. 2023: d = sum_k lambda_k (mean update of task k). Larger tasks count more."""
    generator = torch.Generator().manual_seed(5)
    updates = torch.randn(len(tasks), 6, generator=generator, dtype=torch.float64)
    updates[0] *= 3
    names = NAMES[: len(tasks)]
    weighting = ByTask(MGDA(), dict(zip(names, tasks, strict=True)))
    weighting.bind(names)
    ones = torch.ones(len(tasks), dtype=torch.float64)
    p = weighting.update(
        Signals(ones > 0, ones, ones, ones, ones, gram=updates @ updates.T, gradients=updates)
    )
    counts = [tasks.count(task) for task in "ab"]
    means = torch.stack([part.mean(dim=0) for part in updates.split(counts)])
    inner = MGDA()
    inner.bind(["a", "b"])
    shares = inner.update(Signals(*[torch.ones(2) > 0, *[torch.ones(2)] * 4], gram=means @ means.T))
    theirs = (shares * torch.tensor(counts)) @ means
    torch.testing.assert_close(p @ updates / (p @ updates).norm(), theirs / theirs.norm())


def test_it_needs_what_the_inner_weighting_needs() -> None:
    assert tasks_of(Equal()).needs == Needs.NOTHING
    assert tasks_of(GradNorm()).needs == Needs.LOSS | Needs.NORM


def test_a_frozen_task_holds_its_clients() -> None:
    weighting = bound(lambda: tasks_of(GradNorm()))
    ones = torch.ones(5, dtype=torch.float64)
    norm = torch.tensor([1.0, 1, 0, 0, 2], dtype=torch.float64)
    weighting.update(Signals(ones > 0, ones, ones, ones, norm))
    assert dict(zip(NAMES, weighting.frozen.tolist(), strict=True)) == {
        "a": False,
        "b": False,
        "c": True,
        "d": True,
        "e": False,
    }
    assert bound(lambda: tasks_of(Equal())).frozen is None
