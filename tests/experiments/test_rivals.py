"""Every method that has a name trains, is finite, and is the same again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._methods import METHODS
from fedgradnorm._runs.history import averaged_weights, static_from_run
from fedgradnorm.experiments._config.config_file import for_method, make_config
from fedgradnorm.weighting._loss_based import AFL

OURS = 8  # FedGradNorm's and the baselines of its paper come first
RIVALS = [m for m in list(METHODS.values())[OURS:] if m.name != "fedgradnorm-paper"]
SMALL = {"batch_size": 8, "lr": 0.01, "rounds": 4, "shared_steps": 2}


def train(name: str, folder: Path | None = None, weighting=None, **settings) -> fgn.Run:
    method = METHODS[name]
    settings = {**SMALL, **settings, **method.settings}
    clients = toys.clients()
    if settings.get("heads") == "all":
        clients = [toys.client(n, 24, kind="corner") for n in toys.NAMES]
    return flat.train(
        toys.network(), clients, weighting=weighting or method.build(), folder=folder, **settings
    )


GIVEN = {"static", "fedgradnorm-static"}  # whose weights have to come from somewhere
NAMES = [method.name for method in RIVALS if method.name not in GIVEN]


@pytest.mark.parametrize("name", NAMES)
def test_every_rival_trains_and_is_reproducible(name: str) -> None:
    run, again = train(name), train(name)
    assert run.history.equals(again.history)
    frame = run.history[run.history.split == "batch"]
    assert frame.loss.notna().all()
    sums = frame.groupby("round").weight.sum()
    assert sums.to_numpy() == pytest.approx(3)
    assert all(torch.isfinite(toys.parameters(n)).all() for n in run.networks.values())


@pytest.mark.parametrize("name", ["pcgrad", "graddrop", "rlw", "famo", "nash-mtl", "gradvac"])
def test_a_resumed_run_is_the_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    def stop(event) -> None:
        if event.round >= 2:  # a GPU tells of several rounds at once
            raise KeyboardInterrupt

    whole = train(name, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(name, tmp_path / "part", progress=stop)
    again = train(name, tmp_path / "part", resume=True)
    assert again.history.equals(whole.history)


@pytest.mark.parametrize("name", NAMES)
def test_every_rival_can_be_named_in_a_config(name: str) -> None:
    base = {
        "name": "small",
        "method": "fedgradnorm",
        "data": {"source": "radcom"},
        "network": {"name": "network2"},
        "rounds": 3,
        "weighting": {"gamma": 0.9, "lr": 0.004},
    }
    config = make_config(base).variant(name, 1)
    assert config.weighting == {}, "an option of fedgradnorm's meant something else here"
    assert make_config(for_method(config.table(), name)).table() == config.table()


@pytest.mark.parametrize("method", RIVALS, ids=lambda method: method.name)
def test_the_table_says_everything(method) -> None:
    assert method.summary
    assert method.source
    assert method.equation
    assert method.cost
    if method.name not in GIVEN:
        sizes = fgn.Needs.SIZE if "aggregate" in method.settings else fgn.Needs.NOTHING
        assert method.build().needs | sizes == method.needs


def test_the_random_weights_of_two_seeds_differ() -> None:
    one, other = (train("rlw", seed=seed).weights for seed in (0, 1))
    assert one != other


WEIGHTS = {"corner": 0.1, "side": 1, "place": 1.9}


def test_weights_chosen_by_hand() -> None:
    for side in (1, np.float32(1)):
        weighting = METHODS["static"].build({"weights": {**WEIGHTS, "side": side}})
        assert train("static", weighting=weighting).weights == pytest.approx(WEIGHTS)


@pytest.mark.parametrize("wrong", ["much", 0, True, float("nan")])
def test_a_weight_that_is_no_number_is_refused(wrong: object) -> None:
    with pytest.raises(fgn.ConfigError, match=f"'side' must be a number > 0, not {wrong!r}"):
        METHODS["static"].build({"weights": {**WEIGHTS, "side": wrong}})


def test_weights_for_nobody_or_of_nobody(caplog) -> None:
    with pytest.raises(fgn.ConfigError, match="needs the option 'weights'"):
        METHODS["static"].build()
    with pytest.raises(fgn.ConfigError, match=r"a number per client name, not 0\.5"):
        METHODS["static"].build({"weights": 0.5})
    train("static", weighting=METHODS["static"].build({"weights": {**WEIGHTS, "sde": 1.0}}))
    assert "static weights for 'sde' are not used: the clients are" in caplog.text


def test_static_weights_from_a_finished_run(tmp_path: Path) -> None:
    run = train("fedgradnorm-direct", tmp_path / "run")
    frame = run.history[run.history.split == "batch"]
    means = frame.groupby("client").weight.mean().to_dict()
    assert averaged_weights(tmp_path / "run") == pytest.approx(means)
    again = train("fedgradnorm-static", weighting=static_from_run(str(tmp_path / "run")))
    assert again.weights == pytest.approx(means)


def test_an_unfinished_run_has_no_mean_weights_yet(tmp_path: Path) -> None:
    def stop(event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("fedgradnorm", tmp_path / "run", progress=stop)
    with pytest.raises(fgn.RunFolderError, match="not finished"):
        averaged_weights(tmp_path / "run")


def test_a_weight_of_zero_is_a_weight() -> None:
    run = train("afl", rounds=60, weighting=AFL(loss_lr=0.1))
    assert sorted(run.weights.values()) == [0, 0, 3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "name", [m.name for m in RIVALS if getattr(m.weighting, "needs", None) == fgn.Needs.LOSS]
)
def test_a_captured_run_has_the_loops_weights(name: str) -> None:
    settings = {"rounds": 40, "shared_steps": 1}
    loop = train(name, device="cpu", executor="loop", **settings)
    captured = train(name, device="cuda", executor="joint", **settings)
    for client in toys.NAMES:
        assert captured.weights[client] == pytest.approx(loop.weights[client], rel=1e-6)


def test_famo_with_full_batches_is_its_algorithm() -> None:
    """Liu et al. 2023, algorithm 1: a batch's losses before and after the network's step."""
    clients, network, rounds = toys.clients(), toys.network(), 6
    run = flat.train(
        toys.network(), clients, weighting=METHODS["famo"].build({"logit_lr": 0.5}), rounds=rounds,
        batch_size=1000, lr=0.1, server_optimizer="sgd", head_steps=0, executor="loop",
        eval_every=1,
    )  # fmt: skip
    heads = [run.heads[client.name] for client in clients]
    rows = [(torch.as_tensor(x).double(), torch.as_tensor(y)) for x, y in
            (client.train for client in clients)]  # fmt: skip

    def losses() -> torch.Tensor:
        return torch.stack([
            client.task.loss(head(network(x)), y)
            for client, head, (x, y) in zip(clients, heads, rows, strict=True)
        ])  # fmt: skip

    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    of_logits = torch.optim.Adam([logits], lr=0.5)
    step = torch.optim.SGD(network.parameters(), lr=0.1)
    shown = run.history[run.history.split == "train"].pivot(
        index="round", columns="client", values="weight"
    )[[client.name for client in clients]]
    for number in range(1, rounds + 1):
        before, z = losses(), logits.softmax(0)
        p = (z / before).detach()
        p = p / p.sum()
        assert shown.loc[number].to_numpy() == pytest.approx((3 * p).numpy(), rel=1e-6)
        step.zero_grad()
        (p * before).sum().backward()
        step.step()
        change = before.detach().log() - losses().detach().log()
        of_logits.zero_grad()
        (z * change).sum().backward()
        logits.grad += 1e-3 * logits.detach()
        of_logits.step()
    assert (shown.max() > 1.2 * shown.min()).any()


def test_fsmgda_is_mgda_with_one_client_per_task() -> None:
    """So a table with both shows one method twice; with several clients per task they differ."""
    ours, theirs = train("fsmgda"), train("mgda")
    pair = (toys.parameters(run.network) for run in (ours, theirs))
    torch.testing.assert_close(*pair, rtol=1e-6, atol=1e-9)
