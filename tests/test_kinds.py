"""Binary, multilabel and weighted tasks: the same laws in every engine, saved and resumed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._engines.parts import CLASSES
from fedgradnorm._federation.heads import baseline_of

X = np.random.default_rng(3).normal(size=(40, toys.FEATURES))
RARE = (X[:, 0] > 0.8).astype(np.int64)
TAGS = (X[:, 1:4] > [0.0, 0.5, 1.0]).astype(np.int64)
THREE = (X[:, 0] > 0.5).astype(np.int64) + (X[:, 0] > 1.2)

TASKS: dict[str, tuple[fgn.Task, np.ndarray]] = {
    "binary": (fgn.binary(), RARE),
    "weighted binary": (fgn.binary(pos_weight=4.0), RARE),
    "balanced binary": (fgn.binary(pos_weight="balanced"), RARE),
    "multilabel": (fgn.multilabel(3), TAGS),
    "weighted multilabel": (fgn.multilabel(3, pos_weight=[1, 2, 5]), TAGS),
    "balanced multilabel": (fgn.multilabel(3, pos_weight="balanced"), TAGS),
    "balanced classes": (fgn.classification(3, class_weights="balanced"), THREE),
    "weighted classes": (fgn.classification(3, class_weights=[1, 2, 0.5]), THREE),
}


BALANCED = fgn.classification(3, class_weights="balanced")


def clients() -> list[fgn.Client]:
    made = [
        fgn.Client(n, task, (X[:30], y[:30]), (X[30:], y[30:])) for n, (task, y) in TASKS.items()
    ]
    return [
        *made,
        toys.client("place", 24),
        fgn.Client("again", fgn.binary(), (X, 1 - RARE)),
        fgn.Client("other rows", BALANCED, (X[10:], THREE[10:])),  # and so other weights
    ]


def train(given: list[fgn.Client] | None = None, **options: Any) -> fgn.Run:
    how = {"rounds": 6, "batch_size": 8, "lr": 0.01, "device": "cpu", **options}
    return flat.train(toys.network(), given or clients(), weighting=fgn.GradNorm(), **how)


@pytest.fixture(scope="module")
def looped() -> fgn.Run:
    return train(executor="loop")


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_every_engine_gives_the_loops_run(executor: str, looped: fgn.Run) -> None:
    run = train(executor=executor)
    for name, head in run.heads.items():
        pair = toys.parameters(head), toys.parameters(looped.heads[name])
        torch.testing.assert_close(*pair, rtol=0, atol=1e-11)
    numbers = run.history.select_dtypes("number").columns
    left, right = (one.history[numbers].to_numpy(float) for one in (run, looped))
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-9)


def test_clients_with_other_weights_are_run_in_one_call() -> None:
    alike = [c for c in clients() if c.task.outputs == 3 and c.task.classes]
    engine = toys.federation(toys.network(), alike).engine
    (group,) = engine.table.group([c.name for c in alike])
    assert len(group.names) == 3
    assert len({str(row) for row in group.part.rows[CLASSES].tolist()}) == 3


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_clients_with_weights_may_stay_away(executor: str) -> None:
    fast, slow = (train(executor=name, participation=0.5) for name in (executor, "loop"))
    torch.testing.assert_close(
        *(toys.parameters(run.network) for run in (fast, slow)), rtol=0, atol=1e-11
    )


def test_clients_alone_give_the_loops_run() -> None:
    fast, slow = (train(share="none", executor=executor) for executor in ("auto", "loop"))
    for name, net in fast.networks.items():
        pair = toys.parameters(net), toys.parameters(slow.networks[name])
        torch.testing.assert_close(*pair, rtol=0, atol=1e-11)


def test_a_saved_run_predicts_the_same_and_keeps_its_weights(looped: fgn.Run, tmp_path) -> None:
    loaded = fgn.load(looped.save(tmp_path / "run"))
    for name in TASKS:
        assert (loaded.predict(name, X) == looped.predict(name, X)).all()
    stored = loaded.manifest["clients"]["balanced classes"]["class_weights"]
    counts = np.bincount(THREE[:30])
    assert stored["given"] == "balanced"
    np.testing.assert_allclose(stored["used"], [30 / (3 * counts)])
    assert "class_weights" not in loaded.manifest["clients"]["binary"]


def test_a_run_is_resumed_bit_for_bit_with_the_same_weights_alone(tmp_path) -> None:
    toys.interrupted(train, at=3, folder=tmp_path / "run")
    louder = fgn.classification(3, class_weights=[1, 2, 3])
    other = [replace(c, task=louder) if c.name == "weighted classes" else c for c in clients()]
    with pytest.raises(fgn.RunFolderError, match=r"'weighted classes' has changed \(class_weights"):
        train(other, folder=tmp_path / "run", resume=True)
    resumed = train(folder=tmp_path / "run", resume=True)
    assert toys.same(toys.parameters(resumed.network), toys.parameters(train().network))


def test_predictions_are_classes_and_rows_of_zeros_and_ones(looped: fgn.Run) -> None:
    logits = looped.predict("binary", X, outputs=True)
    assert logits.shape == (40, 1)
    assert (looped.predict("binary", X) == (logits[:, 0] > 0)).all()
    tags = looped.predict("multilabel", X)
    assert tags.shape == (40, 3)
    assert set(np.unique(tags)) <= {0, 1}
    assert tags.dtype == np.int64


def test_binary_is_binary_cross_entropy_and_accuracy() -> None:
    logits = torch.tensor([[2.0], [-1.0], [0.5]], dtype=torch.float64)
    labels = torch.tensor([1, 1, 0])
    expected = F.binary_cross_entropy_with_logits(logits[:, 0], labels.double())
    task = fgn.binary()
    torch.testing.assert_close(task.loss(logits, labels), expected)
    assert float(task.metrics["accuracy"](logits, labels)) == pytest.approx(1 / 3)
    two = F.cross_entropy(torch.cat([torch.zeros_like(logits), logits], dim=1), labels)
    torch.testing.assert_close(task.loss(logits, labels), two)


@pytest.mark.parametrize("given", [[1.0, 2.0, 0.5], np.array([10, 20, 5]), "balanced"])
def test_the_loss_of_all_training_rows_is_torchs_weighted_mean(given: Any) -> None:
    y, output = torch.as_tensor(THREE), torch.randn(40, 3, dtype=torch.float64)
    client = fgn.Client("a", fgn.classification(3, class_weights=given), (X, THREE))
    weight = 1 / y.bincount() if isinstance(given, str) else torch.as_tensor(given)
    expected = F.cross_entropy(output, y, weight=weight.double())
    torch.testing.assert_close(client.task.loss(output, y), expected)


def test_a_balanced_loss_is_the_mean_over_classes() -> None:
    client = fgn.Client("a", fgn.classification(3, class_weights="balanced"), (X, THREE))
    y, output = torch.as_tensor(THREE), torch.randn(40, 3, dtype=torch.float64)
    each = torch.stack([F.cross_entropy(output[y == c], y[y == c]) for c in range(3)])
    torch.testing.assert_close(client.task.loss(output, y), each.mean())


@pytest.mark.parametrize("given", [3.0, "balanced"])
def test_a_pos_weight_is_torchs_up_to_a_factor(given: Any) -> None:
    y, output = torch.as_tensor(RARE), torch.randn(40, 1, dtype=torch.float64)
    client = fgn.Client("a", fgn.binary(pos_weight=given), (X, RARE))
    ones = float(y.sum())
    p = (40 - ones) / ones if given == "balanced" else given
    torchs = F.binary_cross_entropy_with_logits(
        output[:, 0], y.double(), pos_weight=torch.tensor(p, dtype=torch.float64)
    )
    torch.testing.assert_close(client.task.loss(output, y), torchs * 40 / (p * ones + 40 - ones))


@pytest.mark.parametrize("name", TASKS)
def test_no_other_constant_answer_has_less_loss(name: str) -> None:
    task, y = TASKS[name]
    client = fgn.Client(name, task, (X, y))
    answer, target = baseline_of(client), torch.as_tensor(client.train[1])

    def loss(constant: torch.Tensor) -> float:
        return client.task.loss(constant.expand(len(y), -1), target).item()

    steps = 0.5 * torch.randn(50, len(answer), generator=torch.Generator().manual_seed(0)).double()
    assert loss(answer) < 1.05 * min(loss(answer + step) for step in steps)


def test_a_model_that_knows_nothing_has_the_loss_that_log_classes_says() -> None:
    for task, y, classes in ((fgn.binary(pos_weight=9), RARE, 2), (*TASKS["balanced classes"], 3)):
        client = fgn.Client("a", task, (X, y))
        output = torch.zeros(40, client.task.outputs).double()
        expected = pytest.approx(np.log(classes))
        assert float(client.task.loss(output, torch.as_tensor(y))) == expected
    flat.train(toys.network(), [client], rounds=1, first_loss="log_classes", device="cpu")


def test_weights_are_learned_again_on_other_rows() -> None:
    from fedgradnorm.data import partition_client

    whole = fgn.Client("a", fgn.classification(3, class_weights="balanced"), (X, THREE))
    for part in partition_client(whole, "iid", parts=2):
        counts = np.bincount(part.train[1], minlength=3)
        seen = (counts > 0).sum()
        (used,) = part.task.class_weights()["used"]
        np.testing.assert_allclose(used, [20 / (seen * c) if c else 1 for c in counts])


@pytest.mark.parametrize(
    ("task", "y", "said"),
    [
        (fgn.binary(), THREE, r"y\[\d+\] is 2; labels must be 0 .. 1"),
        (fgn.binary(), TAGS, "class labels must be one number a row"),
        (fgn.multilabel(3), TAGS + 1, r"y\[\d+, \d\] is 2.0; each label must be 0 or 1"),
        (fgn.multilabel(2), TAGS, "y has 3 numbers per row, and the task 2 outputs"),
    ],
)
def test_targets_that_do_not_fit_are_named(task: fgn.Task, y: np.ndarray, said: str) -> None:
    with pytest.raises(fgn.DataError, match=f"client 'a', train data: {said}"):
        fgn.Client("a", task, (X, y))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fgn.classification(3, class_weights=[1, 2]), "'balanced' or 3 numbers >= 0"),
        (lambda: fgn.classification(3, class_weights="even"), "'balanced' or 3 numbers >= 0"),
        (lambda: fgn.classification(2, class_weights=[0, 0]), "not all 0"),
        (lambda: fgn.classification(2, class_weights=[1, -1]), ">= 0"),
        (lambda: fgn.binary(pos_weight=True), "'balanced' or a number >= 0"),
        (lambda: fgn.multilabel(3, pos_weight=2.0), "'balanced' or 3 numbers >= 0"),
        (lambda: fgn.multilabel(0), "at least 1 outputs"),
        (lambda: fgn.binary(pos_weight=2, loss=F.mse_loss), "custom loss are both given"),
        (lambda: fgn.Task("ranking", 1, F.mse_loss), "unknown kind of task 'ranking'"),
    ],
)
def test_wrong_weights_and_kinds_are_named(make: Any, said: str) -> None:
    with pytest.raises(fgn.ConfigError, match=said):
        make()


def test_training_rows_that_all_weigh_nothing_are_refused() -> None:
    task = fgn.classification(3, class_weights=[0, 0, 1])
    with pytest.raises(
        fgn.ConfigError, match="client 'a', task 'a': all training rows have weight"
    ):
        fgn.Client("a", task, (X, np.arange(40) % 2))


def test_a_benefit_counts_labels_that_are_right() -> None:
    given = [c for c in clients() if c.name in ("binary", "multilabel")]
    found = flat.benefit(toys.network(), given, rounds=2, device="cpu")
    assert set(found.table["metric"]) == {"accuracy"}


def test_the_table_of_clients_says_what_their_targets_are() -> None:
    from fedgradnorm._report.tables import clients_grid

    shown = {row[0].text: (row[1].text, row[-1].text) for row in clients_grid(clients()).rows}
    assert shown["binary"][0] == "2 classes"
    assert shown["multilabel"][0] == "3 labels"
    ones = 100 * TAGS[:30].mean(axis=0)
    assert shown["multilabel"][1] == ", ".join(f"{i} {p:.1f}%" for i, p in enumerate(ones))
    share = 100 * RARE[:30].mean()
    assert shown["binary"][1] == f"0 {100 - share:.1f}%, 1 {share:.1f}%"


def test_runs_with_other_class_weights_are_not_seeds_of_one_variant(tmp_path) -> None:
    from fedgradnorm._runs.reader import collect
    from fedgradnorm.experiments._groups import group

    for name, given in (("plain", None), ("even", "balanced"), ("even-1", "balanced")):
        client = fgn.Client("a", fgn.classification(3, class_weights=given), (X, THREE))
        how = {"rounds": 1, "seed": int(name == "even-1"), "device": "cpu"}
        flat.train(toys.network(), [client], folder=tmp_path / name, **how)
    groups, _ = group(collect([tmp_path])[0])
    assert sorted(sorted(r.name for r in one.whole) for one in groups) == [
        ["even", "even-1"],
        ["plain"],
    ]
