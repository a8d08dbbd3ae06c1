"""Personal networks at the end: what is tuned, which step is kept, and that it lasts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from experiments.resuming import assert_equal_to_the_bit
from experiments.small_config import small_config
from experiments.test_stopping import clients, losses
from fedgradnorm._engines import engine as executors
from fedgradnorm._engines.parts import ClientPart
from fedgradnorm.experiments import load_config, run

ROUNDS = 4
TUNE = {"steps": 10, "lr": 0.05, "what": "network"}


def train(data: list[fgn.Client] | None = None, network: Any = toys.network, **more: Any):
    how = {"rounds": ROUNDS, "batch_size": 8, "lr": 0.05, "executor": "loop", "device": "cpu"}
    return flat.train(network(), data or clients(), **{**how, "weighting": fgn.Equal(), **more})


def moved(run: fgn.Run, plain: fgn.Run, name: str) -> set[str]:
    """The parameters in which a client's network differs from the other run's."""
    others = dict(plain.networks[name].named_parameters())
    own = run.networks[name].named_parameters()
    return {key for key, one in own if not torch.equal(one, others[key])}


@pytest.mark.parametrize("lr", [1e-3, 0.05, 1e6])
@pytest.mark.parametrize("what", ["head", "network", ["0"]], ids=str)
@pytest.mark.parametrize(
    ("seed", "how"),
    [(0, {}), (1, {"share": "none"}), (2, {"ditto": 0.1}), (3, {"keep": "best", "eval_every": 1})],
)
def test_nobody_is_worse_on_its_validation_rows_than_before(
    seed: int, how: dict, what: Any, lr: float
) -> None:
    network = toys.noisy_network if seed % 2 else toys.network
    how = {"seed": seed, "network": network, "rounds": 3, **how}
    plain, run = train(**how), train(**how, personalize={"steps": 25, "lr": lr, "what": what})
    before, after = losses(plain), losses(run)
    assert set(run.manifest["personal"]) == set(toys.NAMES)
    for name, one in run.manifest["personal"].items():
        assert one["before"] == before[name]
        assert one["after"] == after[name] <= before[name]
        assert 0 <= one["step"] <= 25
        assert (one["step"] > 0) == (after[name] < before[name])
    if lr < 1:
        assert any(one["step"] for one in run.manifest["personal"].values())


def test_tuning_by_hand() -> None:
    """Without validation rows: all steps, on the batches that follow the run's own."""
    data = toys.clients()
    sgd = {"head_optimizer": {"name": "sgd", "lr": 0.3, "momentum": 0.5}, "head_steps": 2}
    plain, run = train(data, **sgd), train(data, **sgd, personalize={**TUNE, "steps": 3})
    engine = toys.federation(toys.network(), data).engine
    for client in data:
        name = client.name
        model = torch.nn.Sequential(plain.networks[name], copy.deepcopy(plain.heads[name]))
        model = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        for step in range(3):
            x, y = toys.batch(engine, name, 2 * ROUNDS + step)
            optimizer.zero_grad()
            client.task.loss(model(x), y).backward()
            optimizer.step()
        torch.testing.assert_close(toys.parameters(run.networks[name]), toys.parameters(model[0]))
        torch.testing.assert_close(toys.parameters(run.heads[name]), toys.parameters(model[1]))
        assert run.manifest["personal"][name] == {"step": 3}
    assert torch.equal(toys.parameters(run.network), toys.parameters(plain.network))


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("head", set()),
        ("network", {"0.weight", "0.bias", "2.weight", "2.bias"}),
        (["2"], {"2.weight", "2.bias"}),
        (["0.bias", "2.weight"], {"0.bias", "2.weight"}),
    ],
)
def test_what_is_named_moves_and_the_head(what: Any, parts: set[str]) -> None:
    data = toys.clients()
    plain, run = train(data), train(data, personalize={**TUNE, "what": what})
    for name in toys.NAMES:
        assert moved(run, plain, name) == parts
        assert (run.clients[name].network is None) == (not parts)
        assert not torch.equal(toys.parameters(run.heads[name]), toys.parameters(plain.heads[name]))


def test_who_has_no_validation_rows_takes_the_last_step_and_the_log_says_so(caplog) -> None:
    caplog.set_level("INFO", "fedgradnorm")
    run = train(clients("side"), personalize=TUNE)
    assert run.manifest["personal"]["side"] == {"step": TUNE["steps"]}
    assert "no validation examples, so the last step is taken: side" in caplog.text
    assert "of 2 clients keep what they tuned" in caplog.text


def test_steps_that_end_in_infinity_are_not_taken() -> None:
    run = train(toys.clients(), head_optimizer="sgd", personalize={**TUNE, "lr": 1e300})
    assert run.manifest["personal"]["place"] == {"step": 0}
    assert all(map(torch.isfinite, toys.parameters(run.networks["place"])))


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_engines_agree(executor: str) -> None:
    left, right = (train(executor=one, personalize=TUNE) for one in ("loop", executor))
    for name in toys.NAMES:
        one, two = left.manifest["personal"][name], right.manifest["personal"][name]
        assert one["step"] == two["step"]
        assert one["after"] == pytest.approx(two["after"], rel=1e-9)
        for part in ("networks", "heads"):
            pair = (toys.parameters(getattr(run, part)[name]) for run in (left, right))
            torch.testing.assert_close(*pair)


@pytest.mark.parametrize("how", [{}, {"share": "none"}, {"ditto": 0.1}], ids=str)
def test_a_saved_run_predicts_with_the_clients_own_networks(tmp_path: Path, how: dict) -> None:
    run = train(network=toys.noisy_network, personalize=TUNE, **how)
    loaded = fgn.load(run.save(tmp_path / "run"))
    assert loaded.manifest["personal"] == run.manifest["personal"]
    assert any(client.network is not None for client in loaded.clients.values())
    for client in clients():
        x, y = client.validation
        output = run.predict(client.name, x, outputs=True)
        assert torch.equal(output, loaded.predict(client.name, x, outputs=True))
        found = client.task.measure(output, y.float() if y.is_floating_point() else y)["loss"]
        assert found == pytest.approx(run.manifest["personal"][client.name]["after"], rel=1e-5)


class Killed(Exception):
    """As a kill: nothing is written on the way out."""


STOPS = {"keep": "best", "patience": 1, "head_init": "random"}  # which lasts for some rounds


@pytest.mark.parametrize("how", [{}, STOPS, {"share": "none"}, {"ditto": 0.1}], ids=str)
def test_it_resumes_to_the_bit(tmp_path: Path, how: dict, monkeypatch) -> None:
    how = {"network": toys.noisy_network, "personalize": TUNE, "rounds": 8, **how}
    how = {**how, "checkpoint_every": 1, "eval_every": 2}

    def stop(event: Any) -> None:
        if event.round == 2:
            raise KeyboardInterrupt

    def dies(part: ClientPart, *more: Any) -> Any:
        if part.task.kind == "regression":  # the last client's
            raise Killed
        return tune(part, *more)

    tune = executors.tune
    whole = train(folder=tmp_path / "whole", **how)
    with pytest.raises(fgn.Interrupted):
        train(folder=tmp_path / "part", progress=stop, **how)
    monkeypatch.setattr(executors, "tune", dies)
    with pytest.raises(Killed):
        train(folder=tmp_path / "part", resume=True, **how)
    monkeypatch.setattr(executors, "tune", tune)
    for _ in range(2):  # the second time it is finished already
        again = train(folder=tmp_path / "part", resume=True, **how)
        assert_equal_to_the_bit(tmp_path / "part", tmp_path / "whole")
        assert again.manifest["personal"] == whole.manifest["personal"]


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"steps": 0}, fgn.ConfigError, "personalize.steps must be a whole number >= 1, not 0"),
        ({"steps": -3}, fgn.ConfigError, "personalize.steps must be a whole number >= 1, not -3"),
        ({"lr": 0}, fgn.ConfigError, "personalize.lr must be > 0, not 0"),
        ({"lr": "fast"}, fgn.ConfigError, "personalize.lr must be a number, not 'fast'"),
        (
            {"what": "haed"},
            fgn.ConfigError,
            "unknown personalization.personalize.what 'haed'; did you mean 'head'",
        ),
        ({"what": []}, fgn.ConfigError, "personalize.what is an empty list"),
        ({"what": 3}, fgn.ConfigError, "personalize.what must be a list of names, not 3"),
        (
            {"step": 3},
            fgn.ConfigError,
            "unknown key of personalization.personalize 'step'; did you mean 'steps'",
        ),
        (200, fgn.ConfigError, "personalize must be a table such as"),
        ({"what": ["2.wieght"]}, fgn.ModelError, "did you mean '2.weight'?"),
    ],
)
def test_what_cannot_be_is_refused_before_training(table: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as caught:
        train(personalize=table)
    assert message in str(caught.value)


def test_it_goes_into_a_config_and_back(tmp_path: Path) -> None:
    changes = ["personalization.personalize.steps=5", "personalization.personalize.what='network'"]
    config = load_config(small_config(tmp_path), changes)
    done = run(config, tmp_path / "out")
    assert done.manifest["settings"]["personalize"] == config.settings.personalize
    assert config.settings.personalize == {"steps": 5, "lr": config.settings.lr, "what": "network"}
    assert load_config(tmp_path / "out" / "config.toml").settings == config.settings
    assert all(one["step"] == 5 for one in done.manifest["personal"].values())
