"""What is shared is a choice: the rest is each client's own, or nobody's."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm.models._dividing import divided, division

FEDBN = {"shared": ["!*Norm*"]}
HOW: dict[str, Any] = {"rounds": 4, "batch_size": 8, "lr": 0.02, "device": "cpu", "seed": 3}


def go(network: nn.Module | None = None, **options: Any) -> fgn.Run:
    clients = options.pop("clients", None) or toys.clients()
    return flat.train(network or toys.noisy_network(), clients, **{**HOW, **FEDBN, **options})


class Tied(nn.Module):
    """One matrix under two names, and an LSTM, which keeps a list of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(toys.FEATURES, 6), nn.LayerNorm(6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.memory = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.memory(self.again(self.norm(self.first(x)))[:, None])[0][:, 0]


@pytest.mark.parametrize(
    ("shared", "frozen", "names"),
    [
        ("*", None, (9, 0, 0)),
        (["!*Norm*"], None, (7, 2, 0)),
        ("LSTM", None, (4, 5, 0)),
        (["memory", "!*bias*"], "norm", (2, 5, 2)),
        ("again.weight", None, (1, 8, 0)),  # tied: also first.weight
        (["first", "again"], ["memory"], (3, 2, 4)),
    ],
)
def test_patterns_name_parameters_layers_and_classes(shared, frozen, names) -> None:
    network = Tied()
    found = division(divided(network, shared, frozen))
    assert tuple(map(len, found)) == names
    assert sorted(n for part in found for n in part) == sorted(dict(network.named_parameters()))
    assert all(p.requires_grad for p in network.parameters())  # the one given is not changed


def test_a_private_layer_is_trained_as_a_part_of_the_head() -> None:
    """The last layers private, or in the head: the same run."""
    first, last = list(toys.network())[:2], list(toys.network())[2:]
    heads = {c.name: toys.seeded(lambda c=c: nn.Linear(5, c.task.outputs)) for c in toys.clients()}

    def clients(heads: dict[str, nn.Module]) -> list[fgn.Client]:
        return [
            fgn.Client(c.name, c.task, c.train, c.test, head=heads[c.name]) for c in toys.clients()
        ]

    private = go(toys.network(), clients=clients(heads), shared="0", executor="loop", head_steps=2)
    longer = {n: nn.Sequential(*copy.deepcopy(last), head) for n, head in heads.items()}
    inside = go(
        nn.Sequential(*first), clients=clients(longer), shared="*", executor="loop", head_steps=2
    )
    assert private.manifest["norm_layer"] == inside.manifest["norm_layer"] == ["0.weight", "0.bias"]
    torch.testing.assert_close(private.network[0].weight, inside.network[0].weight, rtol=0, atol=0)
    for name in toys.NAMES:
        own = private.networks[name][2].weight
        torch.testing.assert_close(own, inside.heads[name][0].weight, rtol=0, atol=0)
        assert not torch.equal(own, toys.network()[2].weight)
    numbers = [
        run.history.select_dtypes("number").drop(columns="bytes") for run in (private, inside)
    ]
    np.testing.assert_array_equal(*(n.to_numpy(float) for n in numbers))


@pytest.mark.parametrize("executor", ["loop", "joint", "vmap"])
@pytest.mark.parametrize("share", ["all", "none"])
def test_frozen_by_a_pattern_is_frozen_by_hand_in_every_engine(executor: str, share: str) -> None:
    by_hand = toys.network()
    for parameter in by_hand[0].parameters():
        parameter.requires_grad_(False)
    how = {"shared": "*", "executor": "auto" if share == "none" else executor, "share": share}
    pattern, hand = go(toys.network(), frozen="0", **how), go(by_hand, **how)
    reference = go(toys.network(), frozen="0", **{**how, "executor": "loop"})
    for name in toys.NAMES:
        one, other, third = (run.networks[name] for run in (pattern, hand, reference))
        assert torch.equal(one[0].weight, toys.network()[0].weight)
        assert torch.equal(one[2].weight, other[2].weight)
        torch.testing.assert_close(one[2].weight, third[2].weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", [toys.noisy_network, Tied], ids=["FedBN", "tied"])
def test_private_parts_are_saved_loaded_resumed_and_used(make, tmp_path: Path) -> None:
    def train(**options: Any) -> fgn.Run:
        network = toys.seeded(make, torch.float32)
        return go(network, **{"personalize": {"steps": 3, "what": "network"}, **options})

    whole = train(folder=tmp_path / "whole")
    toys.interrupted(train, at=3, folder=tmp_path / "cut", checkpoint_every=1)
    again = train(folder=tmp_path / "cut", resume=True, checkpoint_every=1)
    loaded = fgn.load(tmp_path / "whole", network=toys.seeded(make, torch.float32))
    x = toys.rows("side", 7)[0].astype(np.float32)
    norms = set()
    for name in toys.NAMES:
        expected = whole.predict(name, x, kind="output")
        for run in (again, loaded):
            np.testing.assert_array_equal(run.predict(name, x, kind="output"), expected)
        network = whole.networks[name].eval()
        with torch.no_grad():  # without its statistics, but with its parameters
            assert torch.isfinite(network(torch.from_numpy(x))).all()
        private = division(divided(make(), **FEDBN, frozen=None)).private
        norms.add(tuple(dict(network.named_parameters())[n].sum().item() for n in private))
    assert len(norms) == len(toys.NAMES)
    assert (whole.history.dropna(axis=1) == again.history.dropna(axis=1)).all(axis=None)


def test_what_comes_after_a_run_knows_private_parts(tmp_path: Path) -> None:
    run = go()
    new = toys.client("new", kind="side")
    later = run.personalize(new, steps=2)
    x = toys.rows("side", 4)[0].astype(np.float32)
    assert later.predict("new", x).shape == (4,)
    program = torch.export.load(run.export("side", tmp_path / "side.pt2")).module()
    np.testing.assert_allclose(
        program(torch.from_numpy(x)).detach(), run.predict("side", x, kind="output"), atol=1e-5
    )
    on = go(start=run, rounds=1, lr=1e-12)  # begins where the clients were
    for name in toys.NAMES:
        before, after = (r.networks[name][1].weight for r in (run, on))
        torch.testing.assert_close(before, after, rtol=0, atol=1e-6)


def test_clients_alone_and_ditto_keep_private_parts_too() -> None:
    x = toys.rows("side", 4)[0].astype(np.float32)
    alone, loop = go(share="none"), go(share="none", executor="loop")
    for name in toys.NAMES:
        a, b = (run.predict(name, x, kind="output") for run in (alone, loop))
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert np.isfinite(go(ditto=0.1).predict("side", x, kind="output")).all()


def test_the_log_says_whose_what_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedgradnorm"):
        go(frozen="0", rounds=1)
    assert (
        "shared: 45 numbers (4.weight, 4.bias); private to each client: 16 (1.weight, 1.bias); "
        "frozen: 56 (0.weight, 0.bias)"
    ) in caplog.text
    assert "not joint: 2 parameters of the network are private to each client" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shared": "Lienar"}, "matches no parameter.*near it: Linear"),
        ({"shared": "*", "frozen": "encoder"}, "frozen = 'encoder' matches no parameter"),
        ({"shared": "0", "frozen": "Linear"}, "nothing is shared: all 2 parameters.*are frozen"),
        ({"shared": "none"}, "matches no parameter"),
        ({"shared": []}, "empty list"),
        ({"shared": 3}, "list of names"),
        ({"executor": "joint"}, "cannot run this: 2 parameters of the network are private"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_training(options, words) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        go(**options)


def test_a_norm_layer_is_within_what_is_shared() -> None:
    with pytest.raises(
        fgn.ModelError, match="frozen or private: a norm layer is measured on what is"
    ):
        go(norm_layer="1")
    assert go(shared=["0", "1"]).manifest["norm_layer"] == ["0.weight", "0.bias"]
