"""Losses, metrics and splits that cannot be used are refused before the first round, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._round.reports import COLUMNS, KEYS

X, PLACES = toys.rows("place", 24)
CORNERS = toys.rows("corner", 24)


def trained(client: fgn.Client, **options: Any) -> fgn.Run:
    return flat.train(toys.network(), [client, toys.client("side", 30)], rounds=2, **options)


def regression(**options: Any) -> fgn.Client:
    return fgn.Client("place", fgn.regression(2, name="pose", **options), train=(X, PLACES))


LOSSES = {
    "a plain number": (lambda *_: 1.0, "returns float for 3 rows"),
    "nothing": (lambda *_: None, "returns NoneType for 3 rows"),
    "a row of numbers": (lambda o, t: (o - t).square(), r"returns shape \(3, 2\) for 3 rows"),
    "one a column": (lambda o, t: (o - t).square().mean(dim=0), r"returns shape \(2,\) for 3 rows"),
    "all against all": (lambda o, t: o[:, 0] - t[:, :1], r"returns shape \(3, 3\) for 3 rows"),
    "an exception": (lambda o, t: o @ t, "its loss fails: mat1 and mat2"),
}


@pytest.mark.parametrize("executor", ["loop", "joint", "vmap", "auto"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_neither_one_number_nor_one_a_row_is_named(
    name: str, executor: str, tmp_path
) -> None:
    loss, said = LOSSES[name]
    with pytest.raises(fgn.ConfigError, match=said) as caught:
        trained(regression(loss=loss), executor=executor, folder=tmp_path / "run")
    assert "client 'place', task 'pose'" in str(caught.value)
    assert "\n" not in str(caught.value)
    if "fails" not in said:
        assert 'reduction="none"' in str(caught.value)
    assert not (tmp_path / "run").exists()


WEIGHTS = torch.tensor([1.0, 5.0, 0.5])


def joined_rows() -> list[fgn.Client]:
    """Two losses that are one number for all rows, one of them a module, and a usual one."""
    weighted = fgn.classification(3, loss=nn.CrossEntropyLoss(weight=WEIGHTS))
    return [
        fgn.Client("corner", weighted, train=CORNERS, test=toys.rows("corner", 20)),
        regression(loss=F.huber_loss),
        toys.client("side", 30),
    ]


def same_run(one: fgn.Run, other: fgn.Run) -> bool:
    pairs = zip(one.networks.values(), other.networks.values(), strict=True)
    return all(torch.allclose(*map(toys.parameters, p), rtol=0, atol=1e-12) for p in pairs)


@pytest.mark.parametrize("executor", ["joint", "vmap", "auto"])
@pytest.mark.parametrize("steps", [{}, {"head_steps": 3, "final_head_steps": 2}])
def test_a_loss_that_is_one_number_gives_the_loops_run(
    executor: str, steps: dict[str, int]
) -> None:
    how = {"rounds": 6, "batch_size": 8, "device": "cpu", **steps}
    loop, fast = (
        flat.train(toys.network(), joined_rows(), executor=name, **how)
        for name in ("loop", executor)
    )
    assert same_run(loop, fast)
    numbers = loop.history.select_dtypes("number").columns
    left, right = (run.history[numbers].to_numpy(float) for run in (loop, fast))
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("by", ["side by side", "in turn"])
def test_clients_alone_with_such_a_loss_give_the_same_run(by: str) -> None:
    how = {"rounds": 4, "batch_size": 8, "device": "cpu", "share": "none"}
    executor = "auto" if by == "side by side" else "loop"
    one = flat.train(toys.network(), joined_rows(), executor=executor, **how)
    each = [flat.train(toys.network(), [c], executor="loop", **how) for c in joined_rows()]
    for run, name in zip(each, ("corner", "place", "side"), strict=True):
        nets = (toys.parameters(r.networks[name]) for r in (one, run))
        assert torch.allclose(*nets, rtol=0, atol=1e-12)


def test_the_loss_of_a_split_is_that_of_all_its_rows_at_once() -> None:
    """Also where the network takes the rows in parts: a mean of parts' means is another number."""
    x, y = toys.rows("corner", 9000)
    loss = nn.CrossEntropyLoss(weight=WEIGHTS)
    client = fgn.Client("corner", fgn.classification(3, loss=loss), (x, y))
    run = flat.train(toys.network(), [client], rounds=1, batch_size=8, device="cpu")
    output = torch.as_tensor(run.predict("corner", x, outputs=True))
    told = run.history[run.history.split == "train"].loss.iloc[-1]
    expected = F.cross_entropy(output, torch.as_tensor(y), weight=WEIGHTS.double())
    assert told == pytest.approx(float(expected), rel=1e-12)
    assert loss.weight.dtype == torch.float32  # the module given is left as it was


def test_a_run_with_such_a_loss_is_resumed_bit_for_bit(tmp_path) -> None:
    def train(**options: Any) -> fgn.Run:
        return flat.train(toys.network(), joined_rows(), rounds=6, device="cpu", **options)

    toys.interrupted(train, at=3, folder=tmp_path / "run")
    resumed = train(folder=tmp_path / "run", resume=True)
    assert toys.same(toys.parameters(resumed.network), toys.parameters(train().network))


def test_a_benefit_by_a_loss_that_joins_rows_is_refused_before_training() -> None:
    client = fgn.Client("place", fgn.regression(2, loss=F.huber_loss), (X, PLACES), (X, PLACES))
    with pytest.raises(fgn.ConfigError, match="client 'place': its loss is one number"):
        fgn.benefit(toys.network(), [client], rounds=1)


@pytest.mark.parametrize("task", [fgn.classification, fgn.regression])
@pytest.mark.parametrize(
    "metrics",
    [["f2"], ["accuracies"], [max], "f1", {"f1": "f1"}, {"f1": None}, 3, {("a",): max}, {"": max}],
)
def test_metrics_are_functions_by_name(task: Any, metrics: Any) -> None:
    with pytest.raises(fgn.ConfigError, match="metric") as caught:
        task(2, metrics=metrics)
    assert "\n" not in str(caught.value)


def test_a_name_alone_is_told_what_metrics_are() -> None:
    with pytest.raises(fgn.ConfigError, match=r"list of names, such as \['f1'\].*not 'f1'; accur"):
        fgn.classification(2, metrics="f1")


METRICS = {
    "a vector": (lambda o, t: (o - t).mean(dim=0), r"returns shape \(2,\); it must return one"),
    "nothing": (lambda *_: None, "returns NoneType"),
    "an exception": (lambda o, t: o @ t, "fails: mat1 and mat2"),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_that_fails_is_named_before_training(name: str) -> None:
    metric, said = METRICS[name]
    with pytest.raises(fgn.ConfigError, match=rf"client 'place', train data: metric 'own' {said}"):
        trained(regression(metrics={"own": metric}))


@pytest.mark.parametrize("name", [*KEYS, *COLUMNS])
def test_a_metric_cannot_take_the_place_of_another_column(name: str) -> None:
    with pytest.raises(fgn.ConfigError, match=f"metric '{name}' has the name of another column"):
        trained(regression(metrics={name: lambda *_: torch.zeros(())}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": "mse"}, "loss must be a function"),
        ({"loss": 0}, "loss must be a function"),
        ({"loss_scale": "much"}, "loss_scale must be a positive number"),
        ({"loss_scale": None}, "loss_scale must be a positive number"),
        ({"name": 3}, "name must be a text"),
        ({"outputs": True}, "at least 1 outputs, not True"),
        ({"outputs": "2"}, "at least 1 outputs"),
    ],
)
def test_a_tasks_options_are_checked(options: dict[str, Any], said: str) -> None:
    with pytest.raises(fgn.ConfigError, match=said):
        fgn.regression(**options)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("x", [X[:, :3], X[:, 0], X[:, :, None]])
def test_the_rows_of_every_split_have_the_training_rows_shape(split: str, x: np.ndarray) -> None:
    with pytest.raises(fgn.DataError, match=rf"client 'corner': a row of {split} x has shape"):
        fgn.Client("corner", toys.task("corner"), CORNERS, **{split: (x, CORNERS[1])})


def test_a_client_needs_training_data_and_a_task() -> None:
    with pytest.raises(fgn.DataError, match="train data: expected a pair"):
        fgn.Client("a", toys.task("corner"), None)
    with pytest.raises(fgn.DataError, match=r"task must be made by a function such as fgn"):
        fgn.Client("a", "classification", CORNERS)
