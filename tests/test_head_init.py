"""Heads that begin at the baseline: by default, wherever that is allowed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import flat
import shared_heads
import toys
from experiments.small_config import small_config
from fedgradnorm._federation.heads import (
    baseline_of,
    first_head,
    random_because,
    start_at_targets,
)
from fedgradnorm._round.settings import Settings
from fedgradnorm.experiments import load_config, run
from fedgradnorm.experiments._execute import resume_config
from test_streamed import Pairs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, toys.FEATURES))
PRICE = fgn.Client("price", fgn.regression(2), train=(X, 100 + RNG.normal(size=(40, 2))))
RARE = fgn.Client("rare", fgn.classification(3), train=(X, np.array([0] * 36 + [1] * 4)))
NUMBERS = PRICE.train[1].numpy()


def head_of(client: fgn.Client, **settings: Any) -> torch.nn.Module:
    return first_head(toys.network(), client, Settings(**settings))


@pytest.mark.parametrize("client", [PRICE, RARE], ids=lambda client: client.name)
def test_no_other_constant_answer_has_less_loss(client: fgn.Client) -> None:
    answer, y = baseline_of(client), torch.as_tensor(client.train[1])
    y = y.double() if client.task.kind == "regression" else y

    def loss(constant: torch.Tensor) -> float:
        return client.task.loss(constant.expand(len(y), -1), y).item()

    around = [loss(answer + step) for step in 0.5 * torch.randn(50, len(answer)).double()]
    # Every class counts once more than it was seen, so shares are not quite those of the rows.
    assert loss(answer) < (1 if client is PRICE else 1.1) * min(around)


def test_many_answers_at_once_are_those_of_each() -> None:
    chance = np.random.default_rng(1)
    kinds = {
        "number": (fgn.regression(2), lambda n: chance.normal(size=(n, 2))),
        "class": (fgn.classification(3), lambda n: chance.integers(0, 3, n)),
        "weighted": (fgn.classification(3, class_weights="balanced"), lambda n: np.arange(n) % 3),
        "yes": (fgn.binary(), lambda n: np.arange(n) % 2),
        "order": (fgn.ordinal(4), lambda n: np.arange(n) % 4),
        "gaps": (fgn.regression(2), lambda n: np.where(np.eye(n, 2), np.nan, 3.0)),
    }
    for name, (task, targets) in kinds.items():
        some = [
            fgn.Client(f"{name}{k}", task, train=(X[:n], targets(n)))
            for k, n in enumerate((12, 12, 9, 12))
        ]
        biases = torch.zeros(4, task.outputs, dtype=torch.float64)
        start_at_targets(biases, some)
        expected = torch.stack([baseline_of(client).reshape(-1) for client in some])
        torch.testing.assert_close(biases, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("executor", ["loop", "joint", "vmap"])
def test_by_default_the_first_loss_is_near_that_of_the_trivial_answer(executor: str) -> None:
    how = {"rounds": 3, "executor": executor, "device": "cpu"}
    runs = {
        start: flat.train(toys.network(), [PRICE, RARE], **({"head_init": start} if start else {}),
                         **how)
        for start in ("", "random", "targets")
    }  # fmt: skip
    first = {
        start: run.history[run.history.split == "train"].groupby("client").loss.first()
        for start, run in runs.items()
    }
    assert first[""]["price"] < 5 < 5000 < first["random"]["price"]
    assert first[""]["rare"] < first["random"]["rare"]
    heads = ({n: dict(h.state_dict()) for n, h in runs[s].heads.items()} for s in ("", "targets"))
    assert toys.same(*heads)


def test_a_head_of_ones_own_is_left_alone() -> None:
    head = torch.nn.Linear(5, 2).double()
    mine = fgn.Client("price", fgn.regression(2), train=PRICE.train, head=head)
    runs = [
        flat.train(toys.network(), [mine], rounds=1, head_init=start, device="cpu")
        for start in ("random", "targets", "auto")
    ]
    first, *others = (dict(run.heads["price"].state_dict()) for run in runs)
    assert all(toys.same(first, other) for other in others)


def huber(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.huber_loss(output, target, reduction="none").mean(dim=1)


PROMISE = fgn.Privacy(epsilon=3.0, delta=1e-5, noise_multiplier=2.0)
UNLIKE: dict[str, Callable[[], fgn.Client]] = {
    "privacy": lambda: fgn.Client("a", fgn.regression(2), train=PRICE.train, privacy=PROMISE),
    "a custom loss": lambda: fgn.Client("a", fgn.regression(2, loss=huber), train=PRICE.train),
    "custom loss or kind": lambda: fgn.Client("a", fgn.tasks.of_kind(toys.Visits, 2), PRICE.train),
    "read with their examples": lambda: fgn.Client("a", fgn.regression(2), Pairs(X, NUMBERS)),
}


@pytest.mark.parametrize("why", UNLIKE)
def test_by_default_heads_begin_at_random_where_targets_cannot_be_taken(why: str) -> None:
    client = UNLIKE[why]()
    assert why in random_because(client, Settings())
    drawn = dict(head_of(client, head_init="random").state_dict())
    assert toys.same(dict(head_of(client).state_dict()), drawn)


def test_by_default_heads_in_common_begin_at_random_and_others_do_not() -> None:
    """As in a deployment, where the server makes the first and a client the others."""
    tasks = {"a": "one", "b": "one", "c": "two"}
    clients = [shared_heads.client(name, task, 24, "place") for name, task in tasks.items()]
    made = toys.heads(toys.federation(toys.network(), clients, heads="task").engine)
    drawn = dict(head_of(clients[0], head_init="random").state_dict())
    for name in "ab":
        assert toys.same(dict(made[name].state_dict()), drawn)
    torch.testing.assert_close(made["c"].bias.detach(), baseline_of(clients[2]))


def test_weighted_classes_begin_at_weighted_shares() -> None:
    client = fgn.Client("rare", fgn.classification(3, class_weights="balanced"), RARE.train)
    torch.testing.assert_close(head_of(client).bias.detach(), baseline_of(client).reshape(-1))


def test_no_item_of_a_dataset_is_read_for_a_start_that_nobody_asked_for() -> None:
    rows = {}
    for start in ("auto", "targets"):
        pairs = Pairs(X, NUMBERS)
        client = fgn.Client("a", fgn.regression(2), train=pairs)
        before = pairs.read
        head_of(client, head_init=start)
        rows[start] = pairs.read - before
    assert rows["auto"] < 10 < len(X) <= rows["targets"]


def test_the_log_says_once_how_heads_begin(caplog: pytest.LogCaptureFixture) -> None:
    own = fgn.Client("own", fgn.regression(2, loss=huber), train=PRICE.train)
    given = fgn.Client("given", fgn.regression(2), PRICE.train, head=torch.nn.Linear(5, 2).double())
    with caplog.at_level(logging.INFO, "fedgradnorm"):
        flat.train(toys.network(), [PRICE, RARE, own, given], rounds=2, device="cpu")
    (said,) = [r.getMessage() for r in caplog.records if "heads begin" in r.getMessage()]
    assert said == (
        "heads begin at the mean or the class shares of the targets: price, rare; at random (a "
        "custom loss or kind): own; as given: given"
    )


def test_a_number_that_no_row_has_begins_as_it_was_drawn() -> None:
    y = np.stack([NUMBERS[:, 0], np.full(len(X), np.nan)], axis=1)
    client = fgn.Client("half", fgn.regression(2), train=(X, y))
    drawn, begun = head_of(client, head_init="random").bias, head_of(client).bias
    assert begun[1] == drawn[1]
    assert begun[0].item() == pytest.approx(y[:, 0].mean())
    run = flat.train(toys.network(), [client], rounds=2, device="cpu")
    assert np.isfinite(run.summary().last_loss["half"])


def test_a_config_begins_at_the_targets_and_says_so_in_its_folder(tmp_path: Path) -> None:
    file = small_config(tmp_path, value=500 + RNG.normal(size=(40, 1)))
    first = {}
    for start in ("", "random"):
        config = load_config(file, [f"sharing.head_init='{start}'"] if start else [])
        folder = tmp_path / (start or "said nothing")
        history = run(config, folder).history
        first[start] = history.query("client == 'value' and split == 'train'").loss.iloc[0]
        assert f'head_init = "{start or "auto"}"' in (folder / "config.toml").read_text()
        assert resume_config(folder).settings.head_init == (start or "auto")
    assert first[""] < 5 < 10_000 < first["random"]


@pytest.mark.parametrize(
    "task", [fgn.regression(2), fgn.classification(3)], ids=["numbers", "classes"]
)
def test_the_heads_of_many_clients_begin_at_the_targets_that_are_there(task) -> None:
    """Who is made together must not matter: a resumed run makes other clients together."""
    rng = np.random.default_rng(0)
    clients = []
    for k in range(3):
        y = rng.integers(0, 3, 8).astype(float) if task.classes else rng.normal(size=(8, 2))
        y[k] = np.nan
        clients.append(fgn.Client(f"c{k}", task, (rng.normal(size=(8, 4)), y)))
    together, alone = torch.zeros(3, task.outputs), torch.zeros(3, task.outputs)
    start_at_targets(together, clients)
    for row, client in enumerate(clients):
        start_at_targets(alone[row : row + 1], [client])
    assert torch.equal(together, alone)
    assert alone.abs().min() > 0
