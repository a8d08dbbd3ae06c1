"""Labels that nobody gave: they count for no loss and no metric, in any engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from data.small_tables import client_from_files
from fedgradnorm.data import client_from_arrays, partition_client

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(40, toys.FEATURES))
KINDS: dict[str, tuple[fgn.Task, np.ndarray]] = {
    "three": (fgn.classification(3), (X[:, 0] > 0).astype(float) + (X[:, 0] > 1)),
    "balanced": (fgn.classification(3, class_weights="balanced"), (X[:, 1] > 0) + 1.0),
    "side": (fgn.binary(metrics=["f1"]), (X[:, 2] > 0.3).astype(float)),
    "tags": (fgn.multilabel(3, metrics=["f1", "auroc"]), (X[:, :3] > 0).astype(float)),
    "loud tags": (fgn.multilabel(3, pos_weight="balanced"), (X[:, 1:4] > 0.5).astype(float)),
    "place": (fgn.regression(2, metrics=["rmse", "pearson"]), 9 * X[:, 3:5] + 1),
}
CELLS = ("tags", "loud tags", "place")


def gapped(name: str) -> np.ndarray:
    """Targets of which a third of the rows, and of rows with several some numbers, are missing."""
    y = KINDS[name][1].copy()
    gaps = np.random.default_rng(len(name))
    if name in CELLS:
        y[gaps.random(y.shape) < 0.3] = np.nan
    y[gaps.random(len(y)) < 0.3] = np.nan
    return y


def clients() -> list[fgn.Client]:
    return [
        fgn.Client(name, task, (X[:28], gapped(name)[:28]), test=(X[28:], gapped(name)[28:]))
        for name, (task, _) in KINDS.items()
    ]


def train(given: list[fgn.Client] | None = None, **options: Any) -> fgn.Run:
    how = {"rounds": 4, "batch_size": 8, "lr": 0.01, "device": "cpu", **options}
    return flat.train(toys.network(), given or clients(), **how)


@pytest.fixture(scope="module")
def looped() -> fgn.Run:
    return train(executor="loop")


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_every_engine_gives_the_loops_run(executor: str, looped: fgn.Run) -> None:
    run = train(executor=executor)
    numbers = run.history.select_dtypes("number").columns
    left, right = (one.history[numbers].to_numpy(float) for one in (run, looped))
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-9)
    pair = toys.parameters(run.network), toys.parameters(looped.network)
    torch.testing.assert_close(*pair, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in CELLS])
def test_rows_without_a_label_are_as_if_they_were_not_there(name: str) -> None:
    task, _ = KINDS[name]
    y = gapped(name)
    there = ~np.isnan(y)
    whole = fgn.Client(name, task, (X, y), test=(X, y))
    cut = fgn.Client(name, task, (X[there], y[there]), test=(X[there], y[there]))
    assert whole.size == cut.size == there.sum() < len(whole.train[0])
    runs = [train([one]) for one in (whole, cut)]
    assert toys.same(*(toys.parameters(run.network) for run in runs))
    pd.testing.assert_frame_equal(*(run.history for run in runs))


@pytest.mark.parametrize("name", CELLS)
def test_a_loss_is_the_mean_over_rows_of_the_mean_over_their_labels(name: str) -> None:
    task, _ = KINDS[name]
    y = torch.as_tensor(gapped(name))
    client = fgn.Client(name, task, (X, y))
    output = torch.randn(len(y), client.task.outputs, dtype=torch.float64)
    rows = []
    for out, row in zip(output, y, strict=True):
        there = ~row.isnan()
        if there.any():
            if name == "loud tags":
                (weights,) = [torch.tensor(client.task.class_weights()["used"])]
                each = torch.nn.functional.binary_cross_entropy_with_logits(
                    out[there], row[there], reduction="none"
                )
                picked = weights[there, row[there].long()].double()
                rows.append((picked * each).mean())
            else:
                one = fgn.regression(1) if name == "place" else fgn.multilabel(1)
                rows.append(one.loss(out[there, None], row[there, None]))
    torch.testing.assert_close(client.task.loss(output, y), torch.stack(rows).mean())


def test_weights_of_classes_are_learned_on_labels_alone() -> None:
    y = gapped("loud tags")
    (client,) = [one for one in clients() if one.name == "loud tags"]
    used = np.array(client.task.class_weights()["used"])
    ones, count = np.nansum(y[:28], axis=0), (~np.isnan(y[:28])).sum(axis=0)
    np.testing.assert_allclose(used[:, 1], count / (2 * ones))


def test_metrics_of_single_numbers_are_of_those_that_are_there() -> None:
    task, _ = KINDS["place"]
    y = torch.as_tensor(gapped("place"))
    output = torch.randn(40, 2, dtype=torch.float64)
    found = task.measure(output, y)
    there = ~y.isnan()
    away = (output - y)[there]
    assert found["mae"] == pytest.approx(float(away.abs().mean()))
    assert found["rmse"] == pytest.approx(float(away.square().mean().sqrt()))
    each = [np.corrcoef(output[t, k], y[t, k])[0, 1] for k, t in enumerate(there.T)]
    assert found["pearson"] == pytest.approx(np.mean(each), rel=1e-5)


def test_inputs_of_unlabelled_rows_count_for_scaling() -> None:
    y = gapped("place")
    loaded = client_from_arrays("a", fgn.regression(2), (X, y), standardize=True)
    scaling = loaded.scaling
    assert scaling is not None
    assert scaling.input_mean is not None
    assert scaling.target_mean is not None
    np.testing.assert_allclose(scaling.input_mean, X.mean(axis=0))
    np.testing.assert_allclose(scaling.target_mean, np.nanmean(y, axis=0))


def test_rows_without_a_label_are_dealt_out_to_nobody() -> None:
    whole = fgn.Client("a", KINDS["three"][0], (X, gapped("three")))
    parts = partition_client(whole, "dirichlet", parts=2, alpha=5.0, min_size=3)
    assert sum(len(part.train[0]) for part in parts) == whole.size


def test_none_and_pandas_na_are_labels_that_nobody_gave() -> None:
    for y in ([0, 1, None, 1], pd.array([0, 1, None, 1], dtype="Int64"), [0, 1, np.nan, 1]):
        client = fgn.Client("a", fgn.binary(), (X[:4], y))
        assert client.size == 3


def test_a_number_is_never_taken_for_a_missing_label() -> None:
    with pytest.raises(fgn.DataError, match=r"y\[0\] is -1; labels must be 0 .. 1"):
        fgn.Client("a", fgn.binary(), (X[:4], [-1, 1, -1, 1]))


def test_a_client_without_any_label_is_named() -> None:
    with pytest.raises(fgn.DataError, match="client 'a', train data: none of its 4 rows has a lab"):
        fgn.Client("a", fgn.regression(1), (X[:4], np.full(4, np.nan)))
    with pytest.raises(fgn.DataError, match=r"client 'a', test data: none of its 4 rows .*"):
        fgn.Client("a", fgn.binary(), (X[:4], [0, 1, 0, 1]), test=(X[:4], np.full(4, np.nan)))


def test_a_loss_of_ones_own_is_given_whole_rows() -> None:
    def cubed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).abs().pow(3).mean(dim=1)

    y = KINDS["place"][1].copy()
    y[3, 0] = np.nan
    with pytest.raises(fgn.ConfigError, match=r"client 'a', train data: y\[3\] has missing n"):
        fgn.Client("a", fgn.regression(2, loss=cubed), (X, y))
    y[3] = np.nan
    assert fgn.Client("a", fgn.regression(2, loss=cubed), (X, y)).size == 39


def test_a_run_with_gaps_is_resumed_bit_for_bit_and_saved(looped: fgn.Run, tmp_path) -> None:
    toys.interrupted(train, at=2, folder=tmp_path / "run")
    resumed = train(folder=tmp_path / "run", resume=True)
    assert toys.same(toys.parameters(resumed.network), toys.parameters(train().network))
    loaded = fgn.load(looped.save(tmp_path / "saved"))
    for name in KINDS:
        assert (loaded.predict(name, X) == looped.predict(name, X)).all()


def test_empty_cells_of_a_table_are_labels_that_nobody_gave(tmp_path) -> None:
    frame = pd.DataFrame(X[:, :2], columns=["u", "v"]).assign(a=X[:, 2], b=X[:, 3])
    frame.loc[3:6, "a"] = None
    frame.to_csv(tmp_path / "a.csv", index=False, na_rep="NA")
    loaded = client_from_files("a", task="regression", train=tmp_path / "a.csv", targets=["a", "b"])
    assert loaded.client.size == 40
    assert loaded.client.task.gaps
    np.testing.assert_allclose(loaded.client.train[1], frame[["a", "b"]].to_numpy(), rtol=1e-6)
