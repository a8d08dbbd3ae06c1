"""Mistakes that are easy to make: each is mended, or refused with the way out."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
from data.small_tables import client_from_files
from fedgradnorm import data
from fedgradnorm.tasks._measures import r_squared

HOW: dict[str, Any] = {"rounds": 4, "batch_size": 16, "lr": 0.05, "device": "cpu"}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
SUM = X.sum(axis=1)
SIDE = (X[:, 0] > 0).astype(np.int64)


def network(inputs: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh())


def sides(names: str, **options: Any) -> list[fgn.Client]:
    return [
        fgn.Client(name, fgn.classification(2, **options), (X[k:], SIDE[k:]), test=(X, SIDE))
        for k, name in enumerate(names)
    ]


def train(clients: list[fgn.Client], **how: Any) -> fgn.Run:
    shared = how.pop("network", None) or network()
    return flat.train(shared, clients, **{**HOW, **how})


def same_head(run: fgn.Run, one: str, other: str) -> bool:
    return torch.equal(run.heads[one].weight, run.heads[other].weight)


# --------------------------------------------------------------------------- tasks without names


def test_clients_of_one_kind_share_an_unnamed_task(caplog: pytest.LogCaptureFixture) -> None:
    run = train(sides("abc"), heads="task")
    assert same_head(run, "a", "b")
    assert same_head(run, "a", "c")
    assert "clients (a, b, c) have no names and count as the same task" in caplog.text
    caplog.clear()
    named = train(sides("abc", name="side"), heads="task")
    assert torch.equal(run.heads["a"].weight, named.heads["a"].weight)
    assert not caplog.records


def test_a_weight_per_unnamed_task_is_one_weight() -> None:
    cats = fgn.classification(labels=["cat", "dog"])
    clients = [fgn.Client(name, cats, (X, SIDE)) for name in "ab"]
    clients.append(fgn.Client("c", fgn.regression(1), (X, 5 * SUM)))
    run = train(clients, weight_per="task", batch_size=None)
    assert run.weights["a"] == run.weights["b"] != run.weights["c"]


def test_labels_tell_unnamed_tasks_apart() -> None:
    kinds = [["cat", "dog"], ["cat", "dog"], ["no", "yes"], ["no", "yes"]]
    clients = [
        fgn.Client(name, fgn.classification(labels=labels), (X, SIDE))
        for name, labels in zip("abcd", kinds, strict=True)
    ]
    run = train(clients, heads="task")
    assert same_head(run, "a", "b")
    assert same_head(run, "c", "d")
    assert not same_head(run, "a", "c")


@pytest.mark.parametrize("how", [{"heads": "task"}, {"weight_per": "task"}])
def test_by_task_where_nobody_shares_one_is_refused(how: dict[str, Any]) -> None:
    clients = [*sides("a"), fgn.Client("b", fgn.regression(1), (X, SUM))]
    with pytest.raises(fgn.ConfigError, match="no two of the 2 clients share a task") as caught:
        train(clients, **how)
    assert "name='sorting'" in str(caught.value)
    train(clients, **how, share="none")
    train(sides("a"), **how)


@pytest.mark.parametrize("how", [{"heads": "task"}, {"weight_per": "task"}])
def test_a_guess_among_several_unnamed_tasks_is_refused(how: dict[str, Any]) -> None:
    clients = [*sides("ab"), fgn.Client("pose", fgn.classification(3), (X, SIDE))]
    with pytest.raises(fgn.ConfigError, match="clients 'a' and 'b' have classification tasks of 2"):
        train(clients, **how)
    train(clients)  # as it always was


def test_class_numbers_in_a_file_are_no_label_names() -> None:
    table = pd.DataFrame(X, columns=list("wxyz")).assign(side=SIDE)

    def client(name: str, **options: Any) -> fgn.Client:
        loaded = client_from_files(
            name, train=table, task="classification", targets="side", **options
        )
        return loaded.client

    clients = [client("gender"), client("smile"), fgn.Client("r", fgn.regression(1), (X, SUM))]
    with pytest.raises(fgn.ConfigError, match=r"'gender' and 'smile' .* without names"):
        train(clients, heads="task")
    names = [client(name, task_name="side") for name in "ab"]
    assert same_head(train(names, heads="task"), "a", "b")


def test_a_client_that_comes_later_starts_with_the_head_of_its_unnamed_task() -> None:
    run = train(sides("ab"), heads="task")
    later = run.personalize(sides("c")[0], steps=1, lr=1e-30)
    assert torch.equal(later.heads["c"].weight, run.heads["a"].weight)


# ---------------------------------------------------------------- labels that mean something else


def animals(client: str, first: str, second: str, **options: Any) -> fgn.Client:
    y = np.where(SIDE, second, first)
    return fgn.Client(client, fgn.classification(**options), (X, y), test=(X, y))


@pytest.mark.parametrize("heads", ["task", "all"])
def test_heads_whose_outputs_mean_different_classes_are_not_averaged(heads: str) -> None:
    options = {"classes": 2, "name": "animal"}
    clients = [animals("a", "cat", "dog", **options), animals("b", "dog", "horse", **options)]
    with pytest.raises(fgn.ConfigError, match="'a' \\(labels cat, dog\\) and 'b'") as caught:
        train(clients, heads=heads)
    assert "'b' (labels dog, horse)" in str(caught.value)
    assert "fgn.classification(labels=['cat', 'dog', 'horse'])" in str(caught.value)
    train(clients)


@pytest.mark.parametrize("executor", ["loop", "vmap", "joint"])
def test_listed_labels_are_the_way_out(executor: str) -> None:
    labels = ["cat", "dog", "horse"]
    rows = {"cat": X[:, 0] < -0.5, "dog": np.abs(X[:, 0]) <= 0.5, "horse": X[:, 0] > 0.5}
    truth = np.select(list(rows.values()), list(rows), "")
    clients = []
    for name, own in {"a": labels[:2], "b": labels[1:]}.items():
        here = np.isin(truth, own)
        task = fgn.classification(labels=labels, name="animal")
        clients.append(fgn.Client(name, task, (X[here], truth[here]), test=(X[here], truth[here])))
    run = train(clients, heads="task", rounds=150, executor=executor)
    assert same_head(run, "a", "b")
    assert (run.summary().accuracy > 0.95).all()
    assert set(run.predict("a", X, kind="label")) == set(labels)


# ----------------------------------------------------------------------- columns in another order

FRAME = pd.DataFrame({"age": X[:, 0], "size": 50 + 9 * X[:, 1], "price": X[:, 2]})
TARGET = FRAME.age - 2 * FRAME.price
OTHER = ["price", "age", "size"]


def framed(name: str, columns: list[str], **options: Any) -> fgn.Client:
    pair = FRAME[columns], TARGET.to_numpy()
    return data.client_from_arrays(name, fgn.regression(1), pair, test_share=0.25, **options)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("executor", ["loop", "joint"])
def test_columns_are_aligned_by_name(standardize: bool, executor: str) -> None:
    how = {"network": network(3), "rounds": 6, "executor": executor}
    first, second = (framed(n, list(FRAME), standardize=standardize) for n in "ab")
    swapped = framed("b", OTHER, standardize=standardize)
    plain, aligned = (train([first, other], **how) for other in (second, swapped))
    assert torch.equal(plain.network[0].weight, aligned.network[0].weight)
    assert plain.summary().mae.equals(aligned.summary().mae)
    for name in "ab":
        expected = plain.predict(name, FRAME)
        assert np.array_equal(expected, aligned.predict(name, FRAME))
        assert np.array_equal(expected, aligned.predict(name, FRAME[OTHER]))
    assert aligned.clients["b"].columns == tuple(FRAME)


def test_an_array_for_a_client_with_another_order_is_refused(tmp_path: Path) -> None:
    run = train([framed("a", list(FRAME)), framed("b", OTHER)], network=network(3))
    run.predict("a", FRAME.to_numpy())
    run.save(tmp_path)
    for one in (run, fgn.load(tmp_path)):
        with pytest.raises(fgn.DataError, match="given in the order price, age, size") as caught:
            one.predict("b", FRAME[OTHER].to_numpy())
        assert "pd.DataFrame" in str(caught.value)
        assert np.array_equal(one.predict("b", FRAME), run.predict("b", FRAME[OTHER]))
    program = torch.export.load(run.export("b", tmp_path / "b.pt2")).module()
    answer = program(torch.tensor(FRAME.to_numpy()).float())
    assert np.allclose(answer.detach().numpy(), run.predict("b", FRAME), atol=1e-5)


def test_aligned_clients_are_the_same_data_in_every_run(tmp_path: Path) -> None:
    clients = [framed("a", list(FRAME)), framed("b", OTHER)]
    joined = train(clients, network=network(3))
    alone = train(clients, network=network(3), share="none", weighting=fgn.Equal())
    assert {gain.client for gain in joined.benefit(alone, clients).gains} == {"a", "b"}
    prints = [r.manifest["clients"]["b"]["fingerprint"] for r in (joined, alone)]
    assert prints == [clients[1].fingerprint()] * 2
    again = train(list(reversed(clients)), network=network(3), start=joined, lr=1e-30)
    assert np.allclose(again.predict("b", FRAME), joined.predict("b", FRAME), atol=1e-4)
    late = joined.personalize(framed("c", OTHER), steps=1)
    assert late.clients["c"].columns == tuple(FRAME)
    folder = tmp_path / "run"
    train(clients, network=network(3), folder=folder)
    train(clients, network=network(3), folder=folder, resume=True)


def test_other_columns_are_refused_with_their_names() -> None:
    other = FRAME.rename(columns={"price": "cost"})
    clients = [framed("a", list(FRAME)), fgn.Client("b", fgn.regression(1), (other, TARGET))]
    with pytest.raises(fgn.DataError, match="client 'b' has other columns than client 'a'") as e:
        train(clients, network=network(3))
    assert "it lacks 'price'" in str(e.value)
    assert "client 'a' lacks 'cost'" in str(e.value)
    train(clients, network=network(3), share="none")
    with pytest.raises(fgn.DataError, match="x lacks column 'price'"):
        train(clients[:1], network=network(3)).predict("a", other)


def test_encoded_columns_are_aligned_too(tmp_path: Path) -> None:
    table = FRAME.assign(kind=np.where(SIDE, "flat", "house"), y=TARGET)

    def client(name: str, inputs: list[str]) -> fgn.Client:
        options = {"targets": "y", "inputs": inputs, "standardize": True, "categories": ["kind"]}
        return client_from_files(name, train=table, task="regression", **options).client

    order = ["age", "kind", "price"]
    first, second, swapped = client("a", order), client("b", order), client("b", order[::-1])
    runs = [train([first, other], network=network(4)) for other in (second, swapped)]
    assert np.array_equal(*(run.predict("b", table) for run in runs))
    runs[1].save(tmp_path)
    assert np.array_equal(fgn.load(tmp_path).predict("b", table), runs[0].predict("b", table))


# ------------------------------------------------------------------------------------ lazy layers


def test_lazy_layers_get_their_sizes_from_the_first_client(tmp_path: Path) -> None:
    def once(seed: int = 0) -> fgn.Run:
        lazy = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Tanh())
        run = train(sides("ab"), network=lazy, seed=seed)
        assert isinstance(lazy[0], nn.LazyLinear)  # the network given is never changed
        return run

    torch.manual_seed(1)
    first = once()
    torch.manual_seed(2)
    assert torch.equal(first.network[0].weight, once().network[0].weight)
    assert not torch.equal(first.network[0].weight, once(seed=1).network[0].weight)
    first.save(tmp_path)
    assert np.array_equal(fgn.load(tmp_path).predict("a", X), first.predict("a", X))


def test_a_lazy_head_gets_its_size_from_the_network() -> None:
    def once(state: int) -> fgn.Run:
        head, shared = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2)), network()
        clients = [fgn.Client("a", fgn.classification(2), (X, SIDE), head=head), *sides("b")]
        torch.manual_seed(state)  # what others drew before does not matter
        return train(clients, network=shared)

    one, other = once(1), once(2)
    assert one.heads["a"][0].in_features == 8
    assert torch.equal(one.heads["a"][0].weight, other.heads["a"][0].weight)


def test_a_lazy_stem_is_refused_with_the_way_out() -> None:
    stem = nn.LazyLinear(4)
    clients = [*sides("b"), fgn.Client("a", fgn.classification(2), (X, SIDE), stem=stem)]
    with pytest.raises(fgn.ModelError, match="the stem of client 'a' has lazy layers") as caught:
        train(clients)
    assert "call it once on a batch" in str(caught.value)


# --------------------------------------------------------------- numbers that float32 cannot hold


def changed(x: np.ndarray, value: Any) -> np.ndarray:
    x = x.copy()
    x[3, 1] = value
    return x


def test_numbers_beyond_float32_are_named() -> None:
    frame = pd.DataFrame(changed(X.astype(np.float64), 1e40), columns=list("wxyz"))
    client = fgn.Client("a", fgn.classification(2), (frame, SIDE))
    with pytest.raises(
        fgn.DataError, match=r"client 'a', train data: x\[3, 1\] \(column 'x'\)"
    ) as e:
        train([client])
    assert "1e+40, more than float32 can hold (3.4e+38)" in str(e.value)
    assert "standardize=True" in str(e.value)
    target = fgn.Client("a", fgn.regression(1), (X, changed(X.astype(np.float64), 1e40)[:, 1]))
    with pytest.raises(fgn.DataError, match=r"y\[3, 0\] is 1e\+40, more than float32"):
        train([target])
    train([client], network=network().double(), lr=1e-9)


def test_whole_numbers_that_would_be_rounded_are_named() -> None:
    ids = changed(np.zeros_like(X, dtype=np.int64), 2**24 + 1)
    client = fgn.Client("a", fgn.classification(2), (ids, SIDE))
    with pytest.raises(fgn.DataError, match=r"x\[3, 1\] is 16777217, which float32 would round"):
        train([client])
    train([fgn.Client("a", fgn.classification(2), (ids.astype(float), SIDE))])
    train([data.client_from_arrays("a", client.task, (ids, SIDE), standardize=True)])
    train([fgn.Client("a", fgn.classification(2), (changed(ids, 2**25), SIDE))])
    with pytest.raises(fgn.DataError, match="16777217, which float32 would round to 16777216"):
        train(sides("a")).predict("a", ids)
    huge = changed(np.zeros_like(X, dtype=np.uint64), 2**63 + 5)
    with pytest.raises(fgn.DataError, match="x holds 9223372036854775813, more than"):
        fgn.Client("a", fgn.classification(2), (huge, SIDE))


# ------------------------------------------------------------------------------- constant targets


@pytest.mark.parametrize("value", [0.0, 0.1, 7e5])
def test_r2_of_a_constant_target_is_not_a_number(value: float, tmp_path: Path) -> None:
    flat = fgn.Client("flat", fgn.regression(1), (X, SUM), test=(X, np.full(len(X), value)))
    usual = fgn.Client("usual", fgn.regression(1), (X, SUM), test=(X, SUM))
    run = train([flat, usual], folder=tmp_path / "run", eval_every=2)
    summary = run.summary()
    assert math.isnan(summary.loc["flat", "r2"])
    assert math.isfinite(summary.loc["flat", "mae"])
    assert summary.r2.mean() == summary.loc["usual", "r2"] <= 1
    history = fgn.load(tmp_path / "run").history
    rows = history[(history.client == "flat") & (history.split == "test")]
    assert len(rows) == 3
    assert rows.r2.isna().all()
    assert math.isfinite(history[history.client == "usual"].r2.max())


def test_a_report_shows_an_undefined_metric_as_such(tmp_path: Path) -> None:
    task = fgn.regression(1, metrics=["r2"])
    clients = [
        fgn.Client("flat", task, (X, SUM), test=(X, np.ones(len(X)))),
        fgn.Client("usual", task, (X, SUM), test=(X, SUM)),
    ]
    for weighting in (fgn.Equal(), fgn.GradNorm()):
        folder = tmp_path / "runs" / type(weighting).__name__
        train(clients, weighting=weighting, folder=folder)
    words = ["report", tmp_path / "runs", "--out", tmp_path / "page.html"]
    done = subprocess.run(
        [sys.executable, "-m", "fedgradnorm", *map(str, words)],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.stdout.count("R2 n/a") == 2
    assert "nan" not in done.stdout
    assert (tmp_path / "page.html").exists()


def test_r2_of_a_constant_target_in_all_forms() -> None:
    output, target = torch.randn(6, 2), torch.full((6, 2), 0.3)
    assert math.isnan(r_squared(output, target))
    target[0, 1] = torch.nan
    assert math.isnan(r_squared(output, target))
    target[1, 0] = 0.4
    assert math.isfinite(r_squared(output, target))


def test_r2_of_a_constant_streamed_target(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    flat = fgn.Client("flat", fgn.regression(1), (X, SUM), test=(x, np.full(len(X), 0.1)))
    history = train([flat]).history
    assert history[history.split == "test"].r2.isna().all()
    assert history[history.split == "train"].r2.notna().all()


# ------------------------------------------------------------------------------------------- repr


def test_a_client_says_in_one_line_what_it_is() -> None:
    (client,) = sides("a", name="side")
    said = repr(client)
    assert (
        said
        == "Client('a': 'side', classification, 2 classes; 60 train + 60 test examples of shape 4)"
    )
    tasks = {"odd": fgn.classification(2), "sum": fgn.regression(1)}
    both = fgn.Client("b", tasks=tasks, train=(X, {"odd": SIDE, "sum": SUM}))
    assert "odd: 2 classes, sum: 1 number" in repr(both)
    assert "\n" not in repr(both)


def test_a_run_says_in_one_line_what_it_is(tmp_path: Path) -> None:
    run = train(sides("ab"), folder=tmp_path / "run")
    said = repr(run)
    assert (
        said
        == f"Run(GradNorm: 2 clients, 4 of 4 rounds, finished, folder {str(tmp_path / 'run')!r})"
    )
    assert repr(fgn.load(tmp_path / "run")) == said
    assert repr(train(sides("a"), share="none")) == (
        "Run(Equal, nothing shared: 1 client, 4 of 4 rounds, finished)"
    )
    assert "finished, 2 diverged" in repr(train(sides("ab"), lr=1e9, head_optimizer="sgd"))


# ----------------------------------------------------------------------------- unscaled targets


@pytest.mark.parametrize(
    ("y", "how", "options", "warns"),
    [
        (1e5 + SUM, {}, {}, False),  # the head begins at the mean
        (1e5 + SUM, {"head_init": "random"}, {}, True),
        (1e4 * SUM, {"weighting": fgn.GradNorm()}, {}, True),
        (1e4 * SUM, {"weighting": fgn.GradNorm()}, {"loss_scale": 1e-8}, False),
        (1e4 * SUM, {}, {}, True),  # the head has to grow to it
        (1e4 * SUM, {"weighting": fgn.GradNorm(rule="direct")}, {}, True),
        (1e-4 * SUM, {}, {}, False),  # weighted by the direct rule
        (1e5 + SUM, {"weighting": fgn.GradNorm(rule="direct"), "head_init": "random"}, {}, True),
        (SUM, {}, {}, False),
    ],
)
def test_targets_are_pointed_out_only_where_their_loss_is_far(
    y: np.ndarray, how: dict, options: dict, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        train([fgn.Client("a", fgn.regression(1, **options), (X, y))], rounds=1, **how)
    assert ("far from the size of 1" in caplog.text) == warns
