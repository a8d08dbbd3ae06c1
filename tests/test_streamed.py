"""Rows that stay on a disk or in a Dataset: the same training, checked when read."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import fedgradnorm as fgn
import flat
from fedgradnorm import data
from fedgradnorm._round import evaluation
from fedgradnorm.models._streamed import sample_rows

ROWS = 120
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ROWS, 6))
LABELS = (X.sum(axis=1) > 0).astype(np.int64)
VALUES = X[:, :2] * 3 + 1


class Pairs(Dataset[Any]):
    """A map-style Dataset that counts what it is asked for."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y, self.read = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        self.read += 1
        return self.x[row], self.y[row]


class Inputs(Pairs):
    def __getitem__(self, row: int) -> Any:
        return self.x[row]


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh()).double()


def clients(first: Callable[[slice], Any], second: Callable[[slice], Any]) -> list[fgn.Client]:
    held = slice(90, ROWS)
    return [
        fgn.Client("a", fgn.classification(2), train=first(slice(0, 90)), test=first(held)),
        fgn.Client("b", fgn.regression(2), train=second(slice(0, 90)), test=second(held)),
    ]


def in_memory() -> list[fgn.Client]:
    return clients(lambda at: (X[at], LABELS[at]), lambda at: (X[at], VALUES[at]))


def trained(given: list[fgn.Client], **options: Any) -> fgn.Run:
    chosen: dict[str, Any] = {"rounds": 12, "batch_size": 8, "seed": 3, "eval_every": 4}
    start = {"head_init": "targets"}  # "auto" reads no Dataset for it
    how = {**chosen, **start, "head_steps": 2, "executor": "loop", **options}
    return flat.train(network(), given, **how)


@pytest.fixture(scope="module")
def reference() -> fgn.Run:
    return trained(in_memory(), executor="loop")


def assert_same(run: fgn.Run, other: fgn.Run, bits: bool = True) -> None:
    for one, two in zip(run.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(one, two) if bits else torch.allclose(one, two, rtol=0, atol=1e-10)
    assert len(run.table.rows) == len(other.table.rows)
    for row, same in zip(run.table.rows, other.table.rows, strict=True):
        for key, value in row.items():
            if isinstance(value, float) and key != "seconds":
                assert same[key] == pytest.approx(value, abs=1e-10, rel=1e-10), key
            elif key != "seconds":
                assert same[key] == value


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_dataset_and_a_map_train_to_the_same_numbers(
    reference: fgn.Run, npy: Path, workers: int
) -> None:
    x = np.load(npy, mmap_mode="r")
    given = clients(
        lambda at: data.stream(Pairs(X[at], LABELS[at]), workers=workers),
        lambda at: (data.stream(x[at], workers=workers), VALUES[at]),
    )
    assert_same(trained(given), reference)


def test_a_file_and_a_dataset_of_inputs_train_to_the_same_numbers(
    reference: fgn.Run, tmp_path: Path
) -> None:
    np.save(tmp_path / "held.npy", X[90:])
    given = [
        fgn.Client(
            "a",
            fgn.classification(2),
            train=(Inputs(X[:90], None), LABELS[:90]),
            test=(X[90:], LABELS[90:]),
        ),
        fgn.Client(
            "b",
            fgn.regression(2),
            train=(X[:90], VALUES[:90]),
            test=(data.stream(tmp_path / "held.npy"), VALUES[90:]),
        ),
    ]
    assert_same(trained(given), reference)


def test_missing_labels_several_tasks_and_named_inputs(npy: Path) -> None:
    x = np.load(npy, mmap_mode="r")
    gaps = LABELS.astype(float)
    gaps[::7] = np.nan
    values = VALUES.copy()
    values[5, 1] = np.nan
    tasks = {"odd": fgn.classification(2), "two": fgn.regression(2)}

    def federation(inputs: Any) -> list[fgn.Client]:
        table = {"odd": gaps, "two": values}
        return [
            fgn.Client("a", fgn.binary(), train=(inputs, gaps), test=(inputs, gaps)),
            fgn.Client("c", tasks=tasks, train=(inputs, table), test=(inputs, table)),
        ]

    assert_same(trained(federation(x)), trained(federation(X), executor="loop"))

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(6, 5)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(left + right))

    class Both(Pairs):
        def __getitem__(self, row: int) -> Any:
            x, y = super().__getitem__(row)
            return {"left": x, "right": x}, y

    def named(train: Any) -> fgn.Run:
        client = fgn.Client("a", fgn.classification(2), train=train)
        how = {"rounds": 5, "batch_size": 8, "executor": "loop", "head_init": "targets"}
        return flat.train(Named().double(), [client], **how)

    assert_same(named(Both(X, LABELS)), named(({"left": X, "right": X}, LABELS)))


def test_nothing_is_read_before_it_is_needed() -> None:
    pairs = Pairs(np.zeros((10_000, 6)), np.zeros(10_000, dtype=int))
    client = fgn.Client("a", fgn.classification(2), train=pairs)
    assert pairs.read <= 2
    client.fingerprint()
    assert pairs.read <= 300
    before = pairs.read
    few = {"rounds": 3, "head_steps": 1, "first_loss": "first_round", "eval_every": 0}
    run = trained([client], head_init="auto", **few)
    evaluations = len({row["round"] for row in run.table.rows if row["split"] == "train"})
    # All rows in an evaluation, and beside it batches, a few probes and the fingerprint.
    assert pairs.read - before < 1000 + evaluations * 10_000


def test_a_bad_row_names_client_file_and_row(npy: Path) -> None:
    x = np.load(npy, mmap_mode="r+")
    x[17, 2] = np.nan
    x.flush()
    client = fgn.Client("a", fgn.regression(2), train=(np.load(npy, mmap_mode="r"), VALUES))
    with pytest.raises(fgn.DataError, match=r"client 'a', train data, .*x.npy, row 17 .*x\[2\]"):
        trained([client])


@pytest.mark.parametrize(
    ("task", "target", "words"),
    [
        (fgn.classification(2), 7, "item 4: its target"),
        (fgn.regression(1), float("nan"), "item 4: y.* is nan"),
        (fgn.classification(labels=["no", "yes"]), "perhaps", "item 4: its target: .*'perhaps'"),
    ],
)
def test_a_bad_target_of_a_dataset_names_the_item(task: Any, target: Any, words: str) -> None:
    good = {"classification": 1, "regression": 1.0}[task.kind] if not task.labels else "yes"
    y = [target if row == 4 else good for row in range(20)]
    client = fgn.Client("a", task, train=Pairs(X[:20], y))
    with pytest.raises(fgn.DataError, match=f"client 'a', train data, Pairs, {words}"):
        trained([client], rounds=4)


def test_what_cannot_be_a_stream_is_refused(npy: Path, tmp_path: Path) -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    two = fgn.classification(2)
    for split, words in [
        (Endless(), "map-style"),
        ((Inputs(X, None), LABELS[:5]), "120 rows but y has 5"),
        (data.stream(npy), "give a pair"),
        (Pairs([], []), "empty"),
    ]:
        with pytest.raises(fgn.DataError, match=words):
            fgn.Client("a", two, train=split)
    for wrong in (X, tmp_path / "none.npy", tmp_path / "rows.h5", tmp_path / "rows.csv"):
        with pytest.raises(fgn.DataError):
            data.stream(wrong)
    odd = Pairs([X[0], X[1, :3]], [0, 1])
    client = fgn.Client("a", two, train=odd)
    with pytest.raises(fgn.DataError, match=r"item 1: x has shape \(3,\)"):
        trained([client])
    private = fgn.Client(
        "a", two, train=Pairs(X, LABELS), privacy={"epsilon": 1.0, "delta": 1e-5, "clip": 1.0}
    )
    with pytest.raises(fgn.ConfigError, match="examples in memory"):
        trained([private])


@pytest.mark.parametrize(
    ("options", "executor"),
    [
        ({}, "executor joint"),
        ({"participation": [["a"], ["a", "b"], ["b"]], "head_steps": 30}, "executor joint"),
        ({"final_head_steps": 2, "first_loss": "first_round"}, "executor joint"),
        ({"shared_steps": 2}, "(not joint: shared_steps = 2"),
    ],
    ids=str,
)
def test_auto_takes_the_rows_of_all_in_one_pass_where_it_can(
    options: dict[str, Any], executor: str, npy: Path, caplog: Any
) -> None:
    x = np.load(npy, mmap_mode="r")
    given = clients(lambda at: Pairs(X[at], LABELS[at]), lambda at: (x[at], VALUES[at]))
    given.append(replace(in_memory()[1], name="c", validation=(X[:9], VALUES[:9])))
    held = [*in_memory(), given[2]]
    with caplog.at_level(logging.INFO, "fedgradnorm"):
        run = trained(given, executor="auto", **options)
    assert executor in caplog.text
    assert_same(run, trained(held, **options), bits=False)
    for one, two in zip(run.heads.values(), trained(held, **options).heads.values(), strict=True):
        assert torch.allclose(one.weight, two.weight, rtol=0, atol=1e-10)


def test_a_pass_of_more_than_fits_is_left_to_the_loop(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedgradnorm._engines.choice.NUMBERS_READ", 2 * 2 * 8 * 6 - 1)
    given = clients(lambda at: Pairs(X[at], LABELS[at]), lambda at: Pairs(X[at], VALUES[at]))
    with caplog.at_level(logging.INFO, "fedgradnorm"):
        trained(given, rounds=1, executor="auto")
    assert "executor loop (not joint: a round reads 192 numbers from where they are" in caplog.text
    for executor in ("joint", "vmap"):
        with pytest.raises(fgn.ConfigError, match="a round reads 192 numbers"):
            trained(given, executor=executor)


def test_many_registered_clients_may_lie_on_a_disk(npy: Path) -> None:
    x = np.load(npy, mmap_mode="r")

    def many(rows: Any) -> list[fgn.Client]:
        parts = [slice(k % 90, k % 90 + 12 + k % 3) for k in range(200)]
        task = fgn.regression(2)
        return [
            fgn.Client(f"c{k}", task, train=(rows[at], VALUES[at])) for k, at in enumerate(parts)
        ]

    options: dict[str, Any] = {"participation": 0.05, "rounds": 4}
    assert_same(
        trained(many(x), executor="auto", **options), trained(many(X), **options), bits=False
    )


def test_a_run_in_one_pass_is_resumed_and_loaded(tmp_path: Path) -> None:
    def go(folder: str, **more: Any) -> fgn.Run:
        given = clients(lambda at: Pairs(X[at], LABELS[at]), lambda at: (X[at], VALUES[at]))
        return trained(given, executor="auto", folder=tmp_path / folder, **more)

    def stop(event: Any) -> None:
        if event.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        go("stopped", progress=stop)
    go("stopped", resume=True)
    go("whole")
    stopped, whole = (fgn.load(tmp_path / name) for name in ("stopped", "whole"))
    assert_same(stopped, whole)
    assert np.array_equal(stopped.predict("a", X), whole.predict("a", X))


def test_a_bad_row_is_named_in_a_pass_of_all() -> None:
    bad = X.copy()
    bad[7, 2] = np.nan
    given = clients(lambda at: Pairs(bad[at], LABELS[at]), lambda at: (X[at], VALUES[at]))
    with pytest.raises(
        fgn.DataError, match=r"client 'a', train data, Pairs, item 7: x\[2\] is nan"
    ):
        trained(given, executor="auto", eval_every=0, first_loss="first_round", rounds=40)


def test_a_resumed_run_wants_the_same_rows(npy: Path, tmp_path: Path, reference: fgn.Run) -> None:
    def given() -> list[fgn.Client]:
        x = np.load(npy, mmap_mode="r")
        return clients(lambda at: Pairs(X[at], LABELS[at]), lambda at: (x[at], VALUES[at]))

    folder = tmp_path / "run"
    run = trained(given(), folder=folder)
    assert_same(run, reference)
    loaded = fgn.load(folder)
    x = np.load(npy, mmap_mode="r")
    wanted = reference.predict("a", X)
    for many in (x, Pairs(X, LABELS), Inputs(X, None), data.stream(npy)):
        assert np.array_equal(loaded.predict("a", many), wanted)
    other = np.load(npy, mmap_mode="r+")
    other[0, 0] += 1
    other.flush()
    with pytest.raises(fgn.FedGradNormError, match="'b'"):
        trained(given(), folder=folder, resume=True)


def test_rows_that_tell_data_apart_follow_from_their_number() -> None:
    assert sample_rows(5).tolist() == [0, 1, 2, 3, 4]
    many = sample_rows(10**9)
    assert many[0] == 0
    assert many[-1] == 10**9 - 1
    assert 250 <= len(many) <= 256
    assert np.array_equal(many, sample_rows(10**9))


def test_held_out_shares_scaling_and_parts_read_nothing_twice(npy: Path) -> None:
    x = np.load(npy, mmap_mode="r")
    options: dict[str, Any] = {"validation_share": 0.1, "test_share": 0.2, "standardize": True}

    def loaded(inputs: Any) -> fgn.Client:
        task = fgn.regression(2)
        return data.client_from_arrays("b", task, (inputs, VALUES), **options)

    lazy, plain = loaded(x), loaded(X)
    for key, value in plain.scaling.state_dict().items():
        assert torch.allclose(lazy.scaling.state_dict()[key], value, rtol=1e-12, atol=1e-14)
    for split in ("train", "validation", "test"):
        one, two = getattr(lazy, split), getattr(plain, split)
        assert torch.allclose(one[0][:], two[0], rtol=1e-12, atol=1e-12)
        assert torch.allclose(one[1], two[1], rtol=1e-12, atol=1e-12)
    parts = data.partition_client(lazy, "iid", parts=3)
    same = data.partition_client(plain, "iid", parts=3)
    for one_part, two_part in zip(parts, same, strict=True):
        assert torch.allclose(one_part.train[0][:], two_part.train[0], atol=1e-12)
    both = data.client_from_arrays("b", fgn.regression(2), Pairs(X, VALUES), **options)
    assert torch.allclose(both.train[1][:5], plain.train[1][:5], atol=1e-12)
    images = X.reshape(ROWS, 2, 3, 1)
    scaled = data.client_from_arrays(
        "i", fgn.regression(2), (data.stream(Inputs(images, None)), VALUES), standardize=True
    )
    usual = data.client_from_arrays("i", fgn.regression(2), (images, VALUES), standardize=True)
    assert torch.allclose(scaled.train[0][:], usual.train[0], atol=1e-12)


@pytest.mark.parametrize(
    "task",
    [
        fgn.classification(3, metrics=["f1", "auroc"]),
        fgn.binary(),
        fgn.multilabel(3),
        fgn.ordinal(3),
        fgn.regression(3, loss=lambda output, y: (output - y).abs().mean()),
        fgn.regression(3, shape=(2,), metrics={"bias": lambda o, y: (o - y).nanmean()}),
        fgn.classification(3, class_weights=[1.0, 2.0, 3.0]),
    ],
)
def test_scores_in_pieces_are_those_of_the_whole(
    task: fgn.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROWS_AT_ONCE", "FEWEST_ROWS"):
        monkeypatch.setattr(evaluation, name, 13)
    torch.manual_seed(2)
    output = torch.randn(50, task.outputs, *task.shape, dtype=torch.float64)
    if task.form.counted:
        y = torch.randint(0, 3 if task.kind != "binary" else 2, (50,)).double()
    else:
        y = torch.randn_like(output) if task.kind == "regression" else (output + 1 > 0).double()
    if not task.has_own_loss:
        y[7] = torch.nan
        if y.ndim > 1:
            y[9, 0] = torch.nan
    held = fgn.Client("a", task, train=(output, y))
    lazy = fgn.Client("a", task, train=(data.stream(Inputs(output.numpy(), None)), y))
    modules = torch.nn.Identity(), torch.nn.Identity()
    whole = evaluation.evaluate(held.task, *modules, *held.train)
    assert evaluation.evaluate(lazy.task, *modules, *lazy.train) == whole
    assert all(map(math.isfinite, whole.values()))


def test_class_weights_of_a_dataset_are_learned_in_one_pass() -> None:
    task = fgn.classification(2, class_weights="balanced")
    y = (np.arange(ROWS) % 4 == 0).astype(int)
    lazy = fgn.Client("a", task, train=Pairs(X, y))
    assert lazy.task.class_weights() == fgn.Client("a", task, train=(X, y)).task.class_weights()


def test_a_new_name_reads_the_same_rows(npy: Path) -> None:
    client = fgn.Client("a", fgn.classification(2), train=Pairs(X, LABELS))
    other = replace(client, name="b")
    assert torch.equal(other.train[0][:9], client.train[0][:9])
    assert torch.equal(other.train[1][:9], client.train[1][:9])
    assert other.train[0].feed.where == "client 'b', train data"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_outputs_wait_on_the_host_unless_a_metric_is_of_ones_own(
    npy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, plain = set[str](), fgn.Task.measure

    def measure(task: fgn.Task, output: torch.Tensor, *given: Any) -> dict[str, float]:
        seen.add(output.device.type)
        return plain(task, output, *given)

    monkeypatch.setattr(fgn.Task, "measure", measure)
    own = {"own": lambda output, target: (output - target).abs().max()}
    for metrics, where in ((None, {"cpu"}), (own, {"cuda"})):
        seen.clear()
        pair = data.stream(npy), VALUES
        client = fgn.Client("a", fgn.regression(2, metrics=metrics), train=pair, test=pair)
        trained([client], rounds=4, device="cuda")
        assert seen == where
