"""The settings of a run."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, asdict, fields
from typing import Any

import pytest

import fedgradnorm as fgn
import toys
from fedgradnorm._round.settings import Settings, completed
from fedgradnorm._training import train


def test_trains_keywords_and_defaults_are_the_settings() -> None:
    parameters = inspect.signature(fgn.train).parameters
    own = {"network", "clients", "weighting", "start", "folder", "resume", "progress", "callbacks"}
    assert set(parameters) == own | {field.name for field in fields(Settings)}
    for field in fields(Settings):
        assert field.default is not MISSING
        assert parameters[field.name].default == field.default, field.name
        assert parameters[field.name].annotation == field.type, field.name
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY


OTHER: dict[str, Any] = {
    "rounds": 3,
    "epochs": 2.0,
    "batch_size": 8,
    "head_steps": 2,
    "shared_steps": 2,
    "lr": 0.1,
    "head_optimizer": "sgd",
    "server_optimizer": "sgd",
    "local_optimizer": "adam",
    "server_schedule": ["cosine", {"name": "StepLR", "step_size": 2}],
    "head_schedule": {"name": "exponential", "gamma": 0.9},
    "clip": 1.5,
    "head_clip": 0.5,
    "first_loss": "first_round",
    "update": "delta",
    "report_loss": "after",
    "schedule": "together",
    "proximal": 0.1,
    "final_head_steps": 1,
    "heads": "task",
    "head_own": "bias",
    "head_start": "targets",
    "personalize": {"steps": 3, "lr": 0.1, "what": "network"},
    "ditto": 0.1,
    "aggregate": "by_size",
    "order": "old",
    "key": "task",
    "share": "none",
    "participation": 0.5,
    "privacy": {"epsilon": 3.0, "delta": 1e-5, "clip": 1.0, "total": 0.0},
    "shared": ["0", "!0.bias"],
    "frozen": "0.bias",
    "gauge": "0",
    "engine": "loop",
    "device": "cpu",
    "precision": "bf16",
    "compile": True,
    "seed": 1,
    "log_every": 2,
    "eval_every": 2,
    "keep": "best",
    "patience": 2,
    "checkpoint_every": 2,
    "record_conflict": 2,
    "eval_clients": 0.5,
    "record_clients": ["corner"],
}
"""For every setting a value that is not its default."""
BESIDE: dict[str, dict[str, Any]] = {
    "patience": {"keep": "best"},
    "head_own": {"heads": "task"},
}
"""What a setting cannot be without."""


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_keyword_of_train_reaches_the_settings_as_it_was_given(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(
        train, "train_with", lambda _n, _c, _w, settings, **_: seen.append(settings)
    )
    given = {name: OTHER[name], **BESIDE.get(name, {})}
    fgn.train(toys.network(), [], **given)
    assert seen == [Settings(**given)]
    assert getattr(seen[0], name) == OTHER[name] != getattr(Settings(), name)


def test_settings_that_a_manifest_lacks_have_their_defaults() -> None:
    assert completed({"lr": 0.5, "seed": 7}) == asdict(Settings(lr=0.5, seed=7))
    assert completed(asdict(Settings())) == asdict(Settings())


def test_train_documents_every_keyword() -> None:
    text = inspect.getdoc(fgn.train)
    for name in inspect.signature(fgn.train).parameters:
        assert name in text, name


def test_defaults_are_those_of_the_paper() -> None:
    settings = Settings()
    local = settings.local()
    assert (settings.lr, settings.server_optimizer) == (2e-4, "adam")
    assert local.head_optimizer == {"name": "adam", "lr": 2e-4}
    assert local.local_optimizer == {"name": "sgd", "lr": 2e-4}
    assert (settings.head_steps, settings.shared_steps, settings.order) == (1, 1, "new")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number >= 1, not 0"),
        ({"rounds": 1.5}, "rounds must be a whole number"),
        ({"batch_size": -1}, "batch_size must be a whole number >= 1"),
        ({"head_steps": -1}, "head_steps must be a whole number >= 0"),
        ({"shared_steps": 0}, "shared_steps must be a whole number >= 1"),
        ({"shared_steps": True}, "shared_steps must be a whole number"),
        ({"eval_every": -1}, "eval_every must be a whole number >= 0"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a whole number >= 1"),
        ({"keep": "bets"}, "unknown keep 'bets'; did you mean 'best'?"),
        ({"patience": 0, "keep": "best"}, "patience must be a whole number >= 1, not 0"),
        ({"patience": 3}, "patience = 3 ends a run whose best state is kept; give keep = 'best'"),
        ({"epochs": 0}, "epochs must be > 0"),
        ({"epochs": float("inf")}, "epochs must be > 0"),
        ({"epochs": float("nan")}, "epochs must be > 0"),
        ({"epochs": 1, "rounds": 1}, "rounds or epochs, not both"),
        ({"participation": 0}, "participation must be in (0, 1], not 0"),
        ({"participation": 1.1}, "participation must be in (0, 1]"),
        ({"schedule": "alternate"}, "did you mean 'alternating'?"),
        ({"first_loss": "data"}, "unknown first_loss 'data'; did you mean 'dataset'?"),
        ({"update": "grad"}, "did you mean 'gradient'?"),
        ({"report_loss": "befor"}, "did you mean 'before'?"),
        ({"aggregate": "size"}, "did you mean 'by_size'?"),
        ({"order": "newest"}, "did you mean 'new'?"),
        ({"key": "tasks"}, "did you mean 'task'?"),
        ({"share": "some"}, "unknown share 'some'"),
        ({"engine": "lop"}, "did you mean 'loop'?"),
    ],
)
def test_a_bad_setting_is_named_with_its_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fgn.ConfigError) as error:
        Settings(**options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "learning rate of optimizer 'adam' must be > 0, not 0"),
        ({"head_optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'?"),
        ({"head_optimizer": {"name": "sgd", "lr": -1}}, "must be > 0, not -1"),
        ({"local_optimizer": {"name": "sgd", "momentun": 0.9}}, "momentun"),
        ({"head_optimizer": "lbfgs"}, "unknown optimizer 'lbfgs'"),  # it needs a closure
        ({"head_optimizer": "sparseadam"}, "unknown optimizer 'sparseadam'"),
    ],
)
def test_a_bad_optimizer_is_named_with_its_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fgn.ConfigError) as error:
        Settings(**options).local()
    assert message in str(error.value)


def test_an_epoch_is_a_pass_over_the_largest_client() -> None:
    sizes = [500, 3000, 10]
    assert Settings(batch_size=100).rounds_per_epoch(sizes) == 30
    assert Settings(batch_size=100, shared_steps=3, head_steps=5).rounds_per_epoch(sizes) == 6
    assert Settings(batch_size=None).rounds_per_epoch(sizes) == 1
    assert Settings(batch_size=99999).rounds_per_epoch(sizes) == 1
    assert Settings(batch_size=100, epochs=2).total_rounds(sizes) == 60
    assert Settings(batch_size=100, epochs=0.01).total_rounds(sizes) == 1
    assert Settings(batch_size=64, epochs=100).total_rounds([2048]) == 3200
    assert Settings(batch_size=100).total_rounds(sizes) == 300  # ten epochs
    assert Settings(rounds=7).total_rounds(sizes) == 7
