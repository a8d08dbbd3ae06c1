"""Schedules of learning rates, clipped gradients and weight decay: alike in every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import fedgradnorm as fgn
import flat
import toys
from experiments.small_config import small_config
from fedgradnorm._round.lr_schedules import Rates
from fedgradnorm.experiments import load_config, run

HOW: dict[str, Any] = {"rounds": 6, "batch_size": 8, "lr": 0.05, "device": "cpu", "seed": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "schedules": {
        "server_schedule": [{"name": "LinearLR", "total_iters": 2}, "cosine"],
        "head_schedule": {"name": "StepLR", "step_size": 2, "gamma": 0.5},
        "participation": 0.67,
    },
    "one cycle of momentum": {
        "server_schedule": "OneCycleLR",
        "head_optimizer": {"name": "sgd", "momentum": 0.5},
        "head_schedule": {"name": "onecycle", "max_lr": 0.1},
    },
    "one cycle without momentum": {
        "server_schedule": "OneCycleLR",
        "server_optimizer": "sgd",
        "head_schedule": "cosine",
    },
    "clipped": {"clip": 0.5, "head_clip": 0.1, "head_steps": 2},
    "clipped together": {"clip": 0.5, "head_clip": 0.1, "phases": "joint"},
    "weight decay": {
        "server_optimizer": {"name": "adamw", "weight_decay": 0.5},
        "head_optimizer": {"name": "sgd", "weight_decay": 0.2},
    },
}


def go(**options: Any) -> fgn.Run:
    return flat.train(toys.network(), toys.clients(), **{**HOW, **options})


def assert_same(one: fgn.Run, other: fgn.Run) -> None:
    numbers = [r.history.select_dtypes("number").to_numpy(float) for r in (one, other)]
    np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-10)
    for name in toys.NAMES:
        for part in ("networks", "heads"):
            a, b = (toys.parameters(getattr(r, part)[name]) for r in (one, other))
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_engine_gives_the_loops_run(settings: dict[str, Any]) -> None:
    loop = go(executor="loop", **settings)
    plain = {k: v for k, v in settings.items() if k in ("participation", "head_steps", "phases")}
    assert not np.allclose(loop.history.loss, go(executor="loop", **plain).history.loss, rtol=1e-6)
    for executor in ("vmap",) if "clip" in settings else ("joint", "vmap"):
        assert_same(loop, go(executor=executor, **settings))
    if settings.get("phases") != "joint":
        alone = go(share="none", executor="loop", **settings)
        assert_same(alone, go(share="none", executor="auto", **settings))


def test_a_run_that_was_stopped_goes_on_with_the_rate_of_its_round(tmp_path: Path) -> None:
    how = {**SETTINGS["schedules"], "checkpoint_every": 1}
    whole = go(folder=tmp_path / "whole", **how)
    toys.interrupted(go, at=3, folder=tmp_path / "cut", **how)
    again = go(folder=tmp_path / "cut", resume=True, **how)
    assert torch.equal(toys.parameters(whole.network), toys.parameters(again.network))
    assert (whole.history.dropna(axis=1) == again.history.dropna(axis=1)).all(axis=None)
    assert whole.manifest["settings"]["server_schedule"][1] == {"name": "cosine", "T_max": 6}


def test_the_servers_step_is_torchs_own_with_the_schedule_stepped_once_a_round() -> None:
    """Plain SGD along a gradient that is always 1: the sum of the rates, after each round."""
    spec, table = {"name": "StepLR", "step_size": 2, "gamma": 0.1}, {"name": "sgd", "lr": 1.0}
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = lr_scheduler.StepLR(optimizer, 2, 0.1)
    rates = Rates(spec, table)
    for number in range(6):
        assert rates.at(number)["lr"] == optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
    assert rates.at(2) == rates.at(3) != rates.at(4)
    assert Rates("onecycle", {"name": "adam", "lr": 0.1}, 5).at(9)["lr"] < 0.1  # it is over


@pytest.mark.parametrize("name", ["cosine", "CosineAnnealingLR", "cosineannealinglr"])
def test_names_are_those_of_torch_in_any_case(name: str) -> None:
    rates = Rates(name, {"name": "adam", "lr": 1.0}, rounds=10)
    assert [round(rates.at(k)["lr"], 6) for k in (0, 5, 10)] == [1.0, 0.5, 0.0]


def test_a_client_is_clipped_before_it_is_weighed() -> None:
    """Each client's update has the length of the clip, and a long clip changes nothing."""
    how = {"rounds": 1, "executor": "loop", "server_optimizer": {"name": "sgd", "lr": 1.0}}
    free, short = (
        toys.federation(toys.network(), toys.clients(), clip=clip) for clip in (1e9, 1e-3)
    )
    for federation, most in ((free, np.inf), (short, 1e-3)):
        reports = federation.engine.run_clients(federation.server.shared.data, 0, toys.NAMES)
        lengths = reports.gradients().norm(dim=1)
        assert (lengths <= most).all()
        assert (reports.grad_norm <= lengths + 1e-12).all()
    np.testing.assert_allclose(lengths, 1e-3, rtol=1e-2)
    assert_same(go(**how), go(**how, clip=1e9, head_clip=1e9))


def test_schedules_and_clips_are_written_in_a_config(tmp_path: Path) -> None:
    path = small_config(tmp_path)
    text = path.read_text().replace(
        "[local]\n",
        '[sharing]\nshared = ["!1.bias"]\nfrozen = "3.bias"\n'
        '[server]\nserver_schedule = [{name = "linear"}, {name = "step", step_size = 3}]\n'
        '[local]\nclip = 1.0\nhead_clip = 2.0\nhead_schedule = "cosine"\n',
    )
    path.write_text(text)
    trained = run(load_config(path), tmp_path / "run")
    stored = trained.manifest["settings"]
    assert stored["server_schedule"][1] == {"name": "step", "step_size": 3}
    assert (stored["clip"], stored["shared"], stored["frozen"]) == (1.0, ["!1.bias"], "3.bias")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"server_schedule": "cosin"}, "did you mean 'cosine'"),
        ({"server_schedule": "ReduceLROnPlateau"}, "unknown schedule"),
        ({"head_schedule": {"name": "StepLR"}}, "schedule 'step'.*step_size"),
        ({"head_schedule": {"name": "StepLR", "step_size": 2, "gama": 1}}, "gama"),
        ({"head_schedule": 3}, "must be a name such as 'cosine'"),
        ({"head_schedule": []}, "must be a name such as 'cosine'"),
        ({"head_schedule": [3]}, "a schedule is a name or a table"),
        (
            {
                "server_schedule": {"name": "onecycle", "cycle_momentum": True},
                "server_optimizer": "sgd",
            },
            "cycle_momentum needs an optimizer with a momentum",
        ),
        ({"clip": 0}, "clip must be > 0"),
        ({"head_clip": -1.0}, "head_clip must be > 0"),
        ({"clip": 1.0, "executor": "joint"}, "clip needs the length of every client's gradient"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        go(**options)


def test_an_epochs_run_has_a_schedule_as_long_as_itself() -> None:
    how = {"rounds": None, "epochs": 2, "server_schedule": "cosine", "eval_every": 0}
    trained = go(**how)
    (schedule,) = trained.manifest["settings"]["server_schedule"]
    assert schedule["T_max"] == trained.manifest["rounds"] == 12
    assert isinstance(trained.network, nn.Module)
