"""Targets with a shape: masks, tags and images, in every engine, saved and asked for."""

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
from fedgradnorm.data import client_from_arrays

SIDE = (6, 5)
GENERATOR = np.random.default_rng(2)
IMAGES = GENERATOR.normal(size=(18, 1, *SIDE))
CLASSES = (IMAGES[:, 0] > 0).astype(float) + (IMAGES[:, 0] > 1)
GAPPED = np.where(GENERATOR.random(CLASSES.shape) < 0.3, np.nan, CLASSES)
GAPPED[2] = np.nan
TWO = np.stack([3 * IMAGES[:, 0] + 1, -IMAGES[:, 0]], axis=-1)
POOLED = toys.seeded(lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)))

CLIENTS: dict[str, tuple[fgn.Task, np.ndarray]] = {
    "mask": (fgn.classification(3, shape=SIDE, metrics=["f1"]), CLASSES),
    "gaps": (fgn.classification(3, shape=SIDE, class_weights="balanced"), GAPPED),
    "edge": (fgn.binary(shape=SIDE, pos_weight="balanced"), (IMAGES[:, 0] > 1).astype(int)),
    "ranks": (fgn.ordinal(3, shape=SIDE), GAPPED),
    "tags": (fgn.multilabel(2, shape=SIDE), (TWO > 0).astype(float)),
    "image": (fgn.regression(2, shape=SIDE), TWO),
    "own": (fgn.classification(3, shape=SIDE, loss=nn.CrossEntropyLoss(reduction="none")), GAPPED),
    "dice": (fgn.binary(shape=SIDE, loss=lambda o, y: _dice(o, y)), CLASSES > 0),
}


def _dice(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss of whole masks: one number a row."""
    p, y = output[:, 0].sigmoid().flatten(1), target.flatten(1)
    return 1 - 2 * (p * y).sum(dim=1) / (p.sum(dim=1) + y.sum(dim=1) + 1)


def network() -> nn.Module:
    return toys.seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 3, padding=1)
        )
    )


def clients() -> list[fgn.Client]:
    made = [
        fgn.Client(name, task, (IMAGES[:12], y[:12]), test=(IMAGES[12:], y[12:]))
        for name, (task, y) in CLIENTS.items()
    ]
    label = (IMAGES.mean(axis=(1, 2, 3)) > 0).astype(int)
    return [*made, fgn.Client("whole", fgn.classification(2), (IMAGES, label), head=POOLED)]


def train(given: list[fgn.Client] | None = None, **options: Any) -> fgn.Run:
    how = {"rounds": 3, "batch_size": 5, "lr": 0.01, "device": "cpu", "head_steps": 2, **options}
    return flat.train(network(), given or clients(), **how)


@pytest.fixture(scope="module")
def looped() -> fgn.Run:
    return train(executor="loop")


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_every_engine_gives_the_loops_run(executor: str, looped: fgn.Run) -> None:
    run = train(executor=executor)
    pair = toys.parameters(run.network), toys.parameters(looped.network)
    torch.testing.assert_close(*pair, rtol=0, atol=1e-11)
    numbers = run.history.select_dtypes("number").columns
    left, right = (one.history[numbers].to_numpy(float) for one in (run, looped))
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-9)


def test_clients_alone_give_the_loops_run() -> None:
    fast, slow = (train(share="none", executor=executor) for executor in ("auto", "loop"))
    for name, net in fast.networks.items():
        pair = toys.parameters(net), toys.parameters(slow.networks[name])
        torch.testing.assert_close(*pair, rtol=0, atol=1e-11)


def test_a_loss_is_the_mean_over_positions_then_rows() -> None:
    output = torch.randn(18, 3, *SIDE, dtype=torch.float64)
    task = fgn.Client("a", fgn.classification(3, shape=SIDE), (IMAGES, CLASSES)).task
    whole = torch.as_tensor(CLASSES).long()
    torch.testing.assert_close(task.loss(output, whole), F.cross_entropy(output, whole))
    gapped = fgn.Client("a", fgn.classification(3, shape=SIDE), (IMAGES, GAPPED)).task
    y = torch.as_tensor(GAPPED)
    rows = [
        F.cross_entropy(o[None], row.nan_to_num(-100)[None].long(), ignore_index=-100)
        for o, row in zip(output, y, strict=True)
        if not row.isnan().all()
    ]
    torch.testing.assert_close(gapped.for_targets(y).loss(output, y), torch.stack(rows).mean())
    known = ~y.isnan()
    found = gapped.measure(output, y)
    right = (output.argmax(dim=1) == y)[known].double().mean()
    assert found["accuracy"] == pytest.approx(float(right))


def test_answers_have_the_shape(looped: fgn.Run, tmp_path) -> None:
    x = IMAGES[:4]
    assert looped.predict("mask", x).shape == (4, *SIDE)
    assert looped.predict("image", x).shape == (4, 2, *SIDE)
    assert looped.predict("tags", x).shape == (4, 2, *SIDE)
    assert looped.predict("edge", x, kind="probability").shape == (4, *SIDE)
    for name in ("mask", "ranks"):
        p = looped.predict(name, x, kind="probability")
        assert p.shape == (4, 3, *SIDE)
        np.testing.assert_allclose(p.sum(axis=1), 1)
        assert (p >= 0).all()
    loaded = fgn.load(looped.save(tmp_path / "run"))
    for name in CLIENTS:
        assert (loaded.predict(name, x) == looped.predict(name, x)).all()
    program = torch.export.load(loaded.export("mask", tmp_path / "mask.pt2")).module()
    rows = torch.from_numpy(x)
    torch.testing.assert_close(program(rows), looped.predict("mask", rows, outputs=True))


def test_a_run_is_resumed_bit_for_bit(tmp_path) -> None:
    toys.interrupted(train, at=2, folder=tmp_path / "run")
    resumed = train(folder=tmp_path / "run", resume=True)
    assert toys.same(toys.parameters(resumed.network), toys.parameters(train().network))


WORDS = GENERATOR.normal(size=(16, 7, 3))


@pytest.mark.parametrize("first", [False, True], ids=["features last", "features first"])
@pytest.mark.parametrize("executor", ["loop", "joint", "vmap"])
def test_tags_of_a_sequence(executor: str, first: bool) -> None:
    x = WORDS.swapaxes(1, 2) if first else WORDS
    tags = (WORDS[:, :, 0] > 0).astype(int)
    net = nn.Conv1d(3, 4, 3, padding=1) if first else nn.Linear(3, 4)
    client = fgn.Client("a", fgn.classification(2, shape=7), (x, tags), labels=("no", "yes"))
    run = flat.train(
        net.double(), [client], rounds=60, lr=0.05, executor=executor, head_init="targets"
    )
    assert type(run.heads["a"]) is (nn.Conv1d if first else nn.Linear)
    assert (run.predict("a", x) == tags).mean() > 0.95
    assert set(run.predict("a", x, kind="label").flat) == {"no", "yes"}


def test_images_are_standardised_by_channel_and_come_back_in_their_units() -> None:
    loaded = client_from_arrays("a", fgn.regression(2, shape=SIDE), (IMAGES, TWO), standardize=True)
    assert loaded.scaling is not None
    assert loaded.scaling.target_mean is not None
    np.testing.assert_allclose(loaded.scaling.target_mean.flatten(), TWO.mean(axis=(0, 1, 2)))
    run = train([loaded], rounds=60, lr=0.05, batch_size=None)
    answer = run.predict("a", IMAGES)
    mae = np.abs(answer - np.moveaxis(TWO, -1, 1)).mean()
    assert mae < 0.5 * np.abs(TWO - TWO.mean(axis=(0, 1, 2))).mean()
    assert run.summary().loc["a", "mae"] == pytest.approx(mae)


@pytest.mark.parametrize(
    ("task", "y", "says"),
    [
        (fgn.classification(3, shape=(5, 6)), CLASSES, r"must be of shape \(5, 6\) a row"),
        (fgn.regression(3, shape=SIDE), TWO, r"3 numbers must be of shape \(6, 5\) a row"),
        (fgn.classification(2, shape=SIDE), CLASSES, r"y\[\d+, \d+, \d+\] is 2.0; labels must be"),
    ],
)
def test_targets_of_another_shape_are_named(task: fgn.Task, y: np.ndarray, says: str) -> None:
    with pytest.raises(fgn.DataError, match=f"client 'a', train data: .*{says}"):
        fgn.Client("a", task, (IMAGES, y))


def test_networks_and_losses_that_do_not_fit_are_named() -> None:
    mask = fgn.Client("a", fgn.classification(3, shape=SIDE), (IMAGES, CLASSES))
    with pytest.raises(fgn.ModelError, match=r"client 'a'.*rows of shape \(4,\); for targets"):
        fgn.train(nn.Sequential(nn.Flatten(), nn.Linear(30, 4)), [mask], rounds=1)
    label = fgn.Client("a", fgn.binary(), (IMAGES, np.arange(18) % 2))
    with pytest.raises(fgn.ModelError, match=r"client 'a'.*nn.Flatten\(\), or give the client a h"):
        fgn.train(network(), [label], rounds=1)
    loss = fgn.classification(3, shape=SIDE, loss=nn.CrossEntropyLoss())
    joined = fgn.Client("a", loss, (IMAGES, GAPPED))
    with pytest.raises(fgn.ConfigError, match="some labels are missing, and its loss returns a si"):
        fgn.train(network(), [joined], rounds=1)
    with pytest.raises(fgn.ConfigError, match="shape must be the sizes of a target's axes"):
        fgn.classification(3, shape=(0, 4))
