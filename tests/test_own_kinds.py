"""Ordered classes, and custom kinds of tasks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._federation.heads import baseline_of

X = np.random.default_rng(4).normal(size=(60, toys.FEATURES))
STARS = np.clip(np.round(1.5 * X[:, 0] + 2), 0, 4).astype(int)
VISITS = np.random.default_rng(5).poisson(np.exp(0.7 * X[:, 1] + 0.5)).astype(float)


def clients() -> list[fgn.Client]:
    some = np.where(np.arange(60) % 4 == 0, np.nan, VISITS)
    both = {"stars": STARS.astype(float), "visits": some}
    tasks = {"stars": fgn.ordinal(5), "visits": fgn.tasks.of_kind(toys.Visits, outputs=1)}
    return [
        fgn.Client("stars", fgn.ordinal(5, metrics=["f1"]), (X[:45], STARS[:45])),
        fgn.Client("visits", tasks["visits"], (X, VISITS), test=(X, VISITS)),
        fgn.Client("both", tasks=tasks, train=(X, both)),
    ]


@pytest.fixture(scope="module")
def looped() -> fgn.Run:
    return flat.train(toys.network(), clients(), rounds=5, batch_size=16, lr=0.01, executor="loop")


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_every_engine_gives_the_loops_run(executor: str, looped: fgn.Run) -> None:
    run = flat.train(toys.network(), clients(), rounds=5, batch_size=16, lr=0.01, executor=executor)
    pair = toys.parameters(run.network), toys.parameters(looped.network)
    torch.testing.assert_close(*pair, rtol=0, atol=1e-11)


def test_thresholds_are_in_order_and_probabilities_sum_to_one() -> None:
    form = fgn.ordinal(5).form
    output = 3 * torch.randn(40, 4, dtype=torch.float64)
    p = form.probability(output)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(dim=1), torch.ones(40, dtype=torch.float64))
    median = (p.cumsum(dim=1) < 0.5).sum(dim=1)
    assert (form.answer(output) == median).all()


def test_a_far_class_costs_more_than_a_neighbour() -> None:
    output, task = torch.tensor([[9.0, -9.0, 9.0, 9.0]]), fgn.ordinal(5)
    losses = [float(task.loss(output, torch.tensor([c]))) for c in range(5)]
    best = int(np.argmin(losses))
    assert losses[best:] == sorted(losses[best:])
    assert losses[: best + 1] == sorted(losses[: best + 1], reverse=True)


def test_ordered_classes_start_at_their_shares_and_are_learned() -> None:
    client = fgn.Client("a", fgn.ordinal(5), (X, STARS))
    p = client.task.form.probability(baseline_of(client)[None])[0]
    np.testing.assert_allclose(p, np.bincount(STARS, minlength=5) / 60, atol=0.03)
    run = flat.train(toys.network(), [client], rounds=100, lr=0.05, head_init="targets")
    assert run.summary().loc["a", "mae"] < 0.25
    assert set(run.predict("a", X)) <= set(range(5))


def test_a_kind_of_ones_own_checks_answers_and_measures(looped: fgn.Run) -> None:
    rates = looped.predict("visits", X)
    np.testing.assert_allclose(rates, np.exp(looped.predict("visits", X, outputs=True)))
    mae = np.abs(rates[:, 0] - VISITS).mean()
    assert looped.summary().loc["visits", "mae"] == pytest.approx(mae)
    with pytest.raises(fgn.DataError, match="client 'a', train data: counts must be 0 or more"):
        fgn.Client("a", fgn.tasks.of_kind(toys.Visits, 1), (X, VISITS - 9))


def test_a_saved_run_needs_the_kind_again(looped: fgn.Run, tmp_path) -> None:
    place = looped.save(tmp_path / "run")
    loaded = fgn.load(place)
    assert (loaded.predict("visits", X) == looped.predict("visits", X)).all()
    assert list(loaded.predict("both", X)) == ["stars", "visits"]
    code = f"import fedgradnorm as fgn\nfgn.load({str(place)!r})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert "client 'visits' has a task of kind 'visits', which is not defined here" in said


def test_kinds_that_cannot_be_used_are_named() -> None:
    with pytest.raises(fgn.ConfigError, match=r"kind of task Nothing needs a loss"):

        class Nothing(fgn.tasks.Kind):
            name = "nothing"

    with pytest.raises(fgn.ConfigError, match="'regression' exists already"):

        class Regression(toys.Visits):
            name = "regression"

    for kind in (fgn.tasks.Kind, toys.Visits(), 3):
        with pytest.raises(fgn.ConfigError, match="with a name and a loss, or its name"):
            fgn.tasks.of_kind(kind, 1)  # type: ignore[arg-type]

    class Unnamed(toys.Visits):
        """Its name is that of the class it comes from."""

    with pytest.raises(fgn.ConfigError, match="'visits' of Unnamed stands for another class"):
        fgn.tasks.of_kind(Unnamed, 1)
    with pytest.raises(fgn.ConfigError, match="unknown kind of task 'visist'"):
        fgn.tasks.of_kind("visist", 1)
    client = fgn.Client("a", fgn.tasks.of_kind(toys.Visits, 1), (X, VISITS))
    with pytest.raises(fgn.ConfigError, match="nothing is known of the baseline"):
        flat.train(toys.network(), [client], rounds=1, head_init="targets")
    with pytest.raises(fgn.ConfigError, match="at least 2 classes"):
        fgn.ordinal(1)


def test_the_first_metric_of_a_custom_kind_is_its_score() -> None:
    def off(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.exp() - target).abs().mean()

    def twice(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * off(output, target)

    task = fgn.tasks.of_kind(toys.Visits, outputs=1, metrics={"off": off, "twice": twice})
    run = flat.train(toys.network(), [fgn.Client("a", task, (X, VISITS))], rounds=2)
    row = run.summary().loc["a"]
    first = next(iter(task.metrics))
    assert (row["metric"], row["score"]) == (first, row[first])
    assert {"off", "twice"} <= set(row.index)
