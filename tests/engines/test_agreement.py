"""The fast engines give the loop's run, whatever the settings and the weighting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
from fedgradnorm._errors import ConfigError
from fedgradnorm.weighting import IMTLG, FedMGDA
from oracle import mixed_clients

BASE = {"rounds": 50, "batch_size": 8, "lr": 1e-3, "device": "cpu", "seed": 5, "eval_every": 25}
SETTINGS = {
    "plain": {},
    "together": {"schedule": "together"},
    "first round": {"first_loss": "first_round"},
    "by size": {"aggregate": "by_size"},
    "two of three": {"participation": 0.67},
    "full batch": {"batch_size": None},
    "many head steps": {"head_steps": 9},
    "old weights": {"order": "old"},
    "keyed by task": {"key": "task"},
    "another gauge": {"gauge": ["0", "2.weight"]},
}
WEIGHTINGS = {
    "absolute": fgn.GradNorm,
    "direct": lambda: fgn.GradNorm(rule="direct"),
    "squared": lambda: fgn.GradNorm(rule="squared", optimizer="sgd", lr=1e-4),
    "equal": fgn.Equal,
    "by size": fgn.BySize,
    "inner products": IMTLG,
    "inner products in a box": FedMGDA,
    "static": lambda: fgn.Static({"classes": 1.0, "numbers": 0.1, "two": 2.0}),
}


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10), nn.ReLU()).double()


def trained(engine: str, settings: dict, weighting=fgn.GradNorm, net: nn.Module | None = None):
    arguments = {**BASE, **settings, "engine": engine}
    return fgn.train(net or network(), mixed_clients((12,)), weighting=weighting(), **arguments)


def assert_same_run(one: fgn.Run, other: fgn.Run, tolerance: float = 1e-10) -> None:
    for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
    for name, head in one.heads.items():
        for a, b in zip(head.parameters(), other.heads[name].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
    numbers = one.history.select_dtypes("number").columns
    left, right = (run.history[numbers].to_numpy(float) for run in (one, other))
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_joint_equals_loop(settings):
    assert_same_run(trained("loop", settings), trained("joint", settings))


@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
@pytest.mark.parametrize("engine", ["joint", "stacked"])
def test_every_weighting_gives_the_loops_run(engine, weighting):
    assert_same_run(trained("loop", {}, weighting), trained(engine, {}, weighting))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("steps", [1, 3])
def test_stacked_equals_loop(settings, steps):
    settings = {**settings, "shared_steps": steps}
    assert_same_run(trained("loop", settings), trained("stacked", settings))


@pytest.mark.parametrize("engine", ["joint", "stacked"])
def test_own_heads_and_own_losses_give_the_loops_run(engine):
    def absolute(output, target):
        return (output - target).abs().sum(dim=1)

    x = np.random.default_rng(0).normal(size=(40, 12))
    clients = [
        fgn.Client("own loss", fgn.regression(2, loss=absolute), (x, x[:, :2])),
        fgn.Client(
            "own head",
            fgn.classification(3),
            (x, np.arange(40) % 3),
            head=nn.Sequential(nn.Linear(10, 5), nn.Tanh(), nn.Linear(5, 3)),
        ),
        fgn.Client("no bias", fgn.regression(1), (x, x[:, 0]), head=nn.Linear(10, 1, bias=False)),
    ]
    runs = [fgn.train(network(), clients, **BASE, engine=name) for name in ("loop", engine)]
    assert_same_run(*runs)


@pytest.mark.parametrize("engine", ["joint", "stacked"])
@pytest.mark.parametrize("gradient", ["infinite", "finite"])
def test_a_client_that_fails_is_left_out_as_in_the_loop(engine, gradient):
    def sometimes_infinite(output, target):
        losses, fine = (output - target).square().sum(dim=1), target.abs().sum(dim=1) > 0.05
        return losses / fine if gradient == "infinite" else torch.where(fine, losses, torch.inf)

    x = np.random.default_rng(0).normal(size=(40, 12))
    clients = [
        fgn.Client("good", fgn.classification(2), (x, np.arange(40) % 2)),
        fgn.Client("bad", fgn.regression(1, loss=sometimes_infinite), (x, x[:, 0])),
    ]
    runs = [fgn.train(network(), clients, **BASE, engine=name) for name in ("loop", engine)]
    rows = runs[0].history
    assert 0 < (rows[rows.split == "batch"].active == 0).sum() < 50
    assert_same_run(*runs)


@pytest.mark.parametrize(
    ("layer", "engine"),
    [(nn.BatchNorm1d(16), "joint"), (nn.Dropout(0.5), "joint"), (nn.BatchNorm1d(16), "stacked")],
    ids=str,
)
def test_what_would_mix_clients_is_refused_and_left_to_the_loop(layer, engine, caplog):
    net = nn.Sequential(nn.Linear(12, 16), layer, nn.ReLU()).double()
    with pytest.raises(ConfigError, match="dropout or batch statistics"):
        trained(engine, {}, net=net)
    with caplog.at_level("INFO", logger="fedgradnorm"):
        trained("auto", {"rounds": 1}, net=net)
    assert "engine loop" in caplog.text


def test_a_layer_whose_output_is_changed_in_place_is_left_to_other_engines(caplog):
    def net() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(12, 10), nn.ReLU(inplace=True)).double()

    caplog.set_level("INFO", logger="fedgradnorm")
    assert_same_run(trained("auto", {}, net=net()), trained("loop", {}, net=net()))
    assert "changed in place" in caplog.text


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_inner_products_need_no_gradients_where_layers_are_linear(settings, caplog):
    caplog.set_level("INFO", logger="fedgradnorm")
    settings = {**settings, "rounds": 8}
    joint = trained("auto", settings, IMTLG)
    assert "engine joint" in caplog.text
    assert_same_run(joint, trained("loop", settings, IMTLG), tolerance=1e-8)


def test_inner_products_of_other_layers_are_taken_from_the_gradients(caplog):
    def net() -> nn.Module:
        shared = nn.Conv1d(1, 2, 3)
        return nn.Sequential(nn.Unflatten(1, (1, 12)), shared, nn.Flatten()).double()

    caplog.set_level("INFO", logger="fedgradnorm")
    trained("auto", {"rounds": 2}, IMTLG, net())
    assert "not all of its layers are linear" in caplog.text


def test_rows_that_see_each_other_are_found_by_trial():
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    net = nn.Sequential(nn.Linear(12, 16), Centred()).double()
    with pytest.raises(ConfigError, match="batch statistics"):
        trained("joint", {}, net=net)


@pytest.mark.parametrize("engine", ["joint", "stacked"])
def test_a_layer_that_is_used_twice_counts_twice(engine):
    def twice() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            layer = nn.Linear(12, 12)
            return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(12, 10)).double()

    options = {"shared_steps": 2} if engine == "stacked" else {}
    runs = [trained(name, options, net=twice()) for name in ("loop", engine)]
    assert_same_run(*runs)


def test_an_embedding_can_be_the_gauge():
    tokens = torch.arange(48).reshape(24, 2) % 20
    clients = [
        fgn.Client(name, fgn.classification(2), (tokens, (tokens.sum(dim=1) + k) % 2))
        for k, name in enumerate(("even", "odd"))
    ]
    runs = []
    for engine in ("loop", "joint"):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Embedding(20, 3), nn.Flatten()).double()
        arguments = {**BASE, "engine": engine}
        runs.append(fgn.train(net, clients, weighting=fgn.GradNorm(), **arguments))
    assert_same_run(*runs)
