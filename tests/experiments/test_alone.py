"""The choice of alone: nobody ends with less than it can see to be best, and that it lasts."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fedgradnorm as fgn
import flat
import toys
from experiments.overfitting import paired_clients
from experiments.resuming import assert_equal_to_the_bit
from experiments.small_config import small_config
from experiments.test_stopping import clients, losses
from fedgradnorm._report.grid import to_csv
from fedgradnorm._report.page import runs_grid
from fedgradnorm._round.settings import Settings
from fedgradnorm._stored.reader import read_run
from fedgradnorm._training.display import live_display
from fedgradnorm.experiments import load_config, run

ROUNDS = 6
CHOICE = {"steps": 5, "lr": 0.05, "what": "network", "alone": True}
WAYS: list[dict[str, Any]] = [
    {},
    {"keep": "best", "patience": 1},
    {"ditto": 0.1},
    {"participation": 0.7, "network": toys.noisy_network},
    {
        "data": paired_clients(),
        "heads": "task",
        "weight_per": "task",
        "aggregate": "by_size",
        "final_head_steps": 2,
    },
]


def train(data: list[fgn.Client] | None = None, network: Any = toys.network, **more: Any):
    how = {"rounds": ROUNDS, "batch_size": 8, "lr": 0.05, "executor": "loop", "device": "cpu"}
    how = {**how, "eval_every": 2, "weighting": fgn.Equal(), **more}
    return flat.train(network(), data or clients(), **how)


def parts(run: fgn.Run, name: str) -> dict[str, Any]:
    one = run.clients[name]
    network = dict(run.networks[name].named_parameters())
    return {"head": dict(one.head.state_dict()), "network": network, "buffers": one.buffers}


def same(one: fgn.Run, other: fgn.Run, name: str) -> bool:
    return toys.same(parts(one, name), parts(other, name))


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("how", WAYS, ids=" ".join)
def test_everybody_keeps_the_best_of_what_it_could_have_had(how: dict, steps: int) -> None:
    table = {**CHOICE, "steps": steps}
    chosen = train(**how, personalize=table)
    others = {"shared": train(**how)}
    if steps:
        others["tuned"] = train(**how, personalize={**table, "alone": False})
    plain = {
        key: how[key]
        for key in ("data", "keep", "patience", "participation", "network")
        if key in how
    }
    if "final_head_steps" in how:
        plain["final_head_steps"] = how["final_head_steps"]
    others["alone"] = train(**plain, share="none")
    seen = {kind: losses(other) for kind, other in others.items()}
    for name, one in chosen.manifest["personal"].items():
        offered = {kind: found[name] for kind, found in seen.items()}
        assert one["kept"] == min(offered, key=offered.__getitem__)
        assert one["after"] == losses(chosen)[name] == min(offered.values())
        assert (one["before"], one["alone"]) == (offered["shared"], offered["alone"])
        assert one["tuned"] == offered.get("tuned", offered["shared"])
        assert same(chosen, others[one["kept"]], name)


def test_all_three_are_chosen_by_somebody() -> None:
    """Else the law above says little."""
    found = {
        one["kept"]
        for seed in range(3)
        for one in train(personalize={**CHOICE, "steps": 1}, seed=seed)
        .manifest["personal"]
        .values()
    }
    assert {"tuned", "alone"} <= found


def test_who_has_no_validation_rows_keeps_what_it_had_and_the_log_says_so(caplog) -> None:
    caplog.set_level("INFO", "fedgradnorm")
    chosen = train(clients("side"), personalize=CHOICE)
    tuned = train(clients("side"), personalize={**CHOICE, "alone": False})
    assert chosen.manifest["personal"]["side"] == {"kept": "tuned", "step": CHOICE["steps"]}
    assert same(chosen, tuned, "side")
    assert "so not what was trained alone: side" in caplog.text
    none = train(clients("side"), personalize={**CHOICE, "steps": 0})
    assert none.manifest["personal"]["side"] == {"kept": "shared", "step": 0}


def test_training_alone_that_fails_costs_nobody_anything(caplog) -> None:
    """A first validation loss of 0 does not count among others, but alone there is no other."""
    flat = fgn.regression(2, loss=lambda output, target: 0 * (output - target).sum(dim=1))
    data = [*clients()[:2], replace(clients()[2], task=flat)]
    how = {"keep": "best", "personalize": {**CHOICE, "alone": False}}
    plain = train(data, **how)
    chosen = train(data, **{**how, "personalize": CHOICE})
    assert (
        "nobody keeps what was trained alone: the best round and early stopping compare"
        in caplog.text
    )
    for name, one in chosen.manifest["personal"].items():
        assert one["kept"] != "alone"
        assert one["alone"] is None
        assert same(chosen, plain, name)


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_engines_agree(executor: str) -> None:
    left, right = (train(executor=one, personalize=CHOICE) for one in ("loop", executor))
    for name in toys.NAMES:
        one, two = left.manifest["personal"][name], right.manifest["personal"][name]
        assert one["kept"] == two["kept"]
        assert one["after"] == pytest.approx(two["after"], rel=1e-9)
        pair = (toys.parameters(run.networks[name]) for run in (left, right))
        torch.testing.assert_close(*pair)


def test_without_sharing_there_is_nothing_to_choose() -> None:
    tuned = {**CHOICE, "alone": False}
    left, right = (train(share="none", personalize=table) for table in (CHOICE, tuned))
    assert left.manifest["personal"] == right.manifest["personal"]


def test_a_saved_run_predicts_with_what_was_chosen(tmp_path: Path) -> None:
    chosen = train(network=toys.noisy_network, personalize=CHOICE)
    loaded = fgn.load(chosen.save(tmp_path / "run"))
    assert loaded.manifest["personal"] == chosen.manifest["personal"]
    for client in clients():
        x, y = client.validation
        output = loaded.predict(client.name, x, outputs=True)
        assert torch.equal(output, chosen.predict(client.name, x, outputs=True))
        found = client.task.measure(output, y.float() if y.is_floating_point() else y)["loss"]
        assert found == pytest.approx(chosen.manifest["personal"][client.name]["after"], rel=1e-5)


class Killed(Exception):
    """As a kill: nothing is written on the way out."""


def ending(stage: str, at: int, how: type[BaseException]) -> Any:
    def stop(event: Any) -> None:
        if (event.stage, event.round) == (stage, at):
            raise how

    return stop


@pytest.mark.parametrize("how", [{}, {"keep": "best", "patience": 1}, {"ditto": 0.1}], ids=str)
@pytest.mark.parametrize("end", [KeyboardInterrupt, Killed])
def test_it_resumes_to_the_bit(tmp_path: Path, how: dict, end: type[BaseException]) -> None:
    """Stopped on the way, then in the part alone; the second time with a network of another start.

    A program that does not fix its seed makes another network when it is run again.
    """
    how = {"personalize": CHOICE, "checkpoint_every": 1, "network": toys.noisy_network, **how}
    whole = train(folder=tmp_path / "whole", **how)
    folder, caught = tmp_path / "part", fgn.Interrupted if end is KeyboardInterrupt else Killed
    with pytest.raises(caught):
        train(folder=folder, progress=ending("", 1, end), **how)

    def other() -> torch.nn.Module:
        network = toys.noisy_network()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1.5)
        return network

    how["network"] = other
    with pytest.raises(caught) as stopped:
        train(folder=folder, resume=True, progress=ending("alone", 1, end), **how)
    if end is KeyboardInterrupt:
        assert "while clients trained alone; resume from" in str(stopped.value)
        assert not stopped.value.run.finished
    for _ in range(2):  # the second time it is finished already
        again = train(folder=folder, resume=True, **how)
        assert_equal_to_the_bit(folder, tmp_path / "whole")
        assert again.manifest["personal"] == whole.manifest["personal"]
        assert again.finished


def test_terminal_log_and_page_say_what_was_chosen(tmp_path: Path) -> None:
    text = io.StringIO()
    with live_display(0, console=Console(file=text, width=400)) as show:
        chosen = train(personalize=CHOICE, progress=show, folder=tmp_path / "run")
    kept = [one["kept"] for one in chosen.manifest["personal"].values()]
    words = f"{kept.count('tuned')} what they tuned, {kept.count('alone')} what they trained alone"
    assert f"(alone): round {ROUNDS}/{ROUNDS}" in text.getvalue()
    assert text.getvalue().splitlines()[-1].endswith(words)
    assert (tmp_path / "run" / "log.txt").read_text().count(words) == 1
    assert words in to_csv(runs_grid([read_run(tmp_path / "run")]))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"alone": 1}, "personalize.alone must be True or False, not 1"),
        ({"alone": "yes"}, "personalize.alone must be True or False, not 'yes'"),
        ({"alone": False, "steps": 0}, "personalize.steps must be a whole number >= 1, not 0"),
        ({"alone": True, "steps": -1}, "personalize.steps must be a whole number >= 0, not -1"),
        ({"aline": True}, "did you mean 'alone'?"),
    ],
)
def test_what_cannot_be_is_refused(table: dict, message: str) -> None:
    with pytest.raises(fgn.ConfigError) as caught:
        Settings(personalize=table)
    assert message in str(caught.value)


def test_off_is_as_if_it_were_not_there() -> None:
    """Both are the same run, so one resumes the other and they are grouped together."""
    assert Settings(personalize={"alone": False}) == Settings(personalize={})


def test_it_goes_into_a_config_and_back(tmp_path: Path) -> None:
    changes = ["personalization.personalize.steps=0", "personalization.personalize.alone=true"]
    config = load_config(small_config(tmp_path), [*changes, "data.validation_share=0.2"])
    done = run(config, tmp_path / "out")
    assert config.settings.chooses_alone
    assert load_config(tmp_path / "out" / "config.toml").settings == config.settings
    assert all(one["kept"] in ("shared", "alone") for one in done.manifest["personal"].values())
