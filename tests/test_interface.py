"""The keywords of ``fgn.train``: groups of settings, methods by name, and what is no keyword."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import toys
from experiments.small_config import small_config
from fedgradnorm._methods import METHODS
from fedgradnorm._round.settings import (
    FIELDS,
    GROUPS,
    OPTIONS,
    TOP,
    Settings,
    key_of,
    keyed,
    keywords,
)
from fedgradnorm._training import train
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments import run as execute
from fedgradnorm.experiments._config.config_file import build
from fedgradnorm.experiments._groups import BESIDE
from fedgradnorm.experiments._variants import felt_by, read_entry

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
    "sends": "delta",
    "report_loss": "after",
    "phases": "joint",
    "proximal": 0.1,
    "final_head_steps": 1,
    "heads": "task",
    "head_own": "bias",
    "head_init": "targets",
    "personalize": {"steps": 3, "lr": 0.1, "what": "network"},
    "ditto": 0.1,
    "aggregate": "by_size",
    "step_with": "previous",
    "weight_per": "task",
    "share": "none",
    "participation": 0.5,
    "privacy": {
        "epsilon": 3.0,
        "delta": 1e-5,
        "clip": 1.0,
        "noise": "fresh",
        "large_epsilon": False,
    },
    "shared": ["0", "!0.bias"],
    "frozen": "0.bias",
    "norm_layer": "0",
    "executor": "loop",
    "device": "cpu",
    "precision": "bf16",
    "compile": True,
    "seed": 1,
    "log_every": 2,
    "eval_every": 2,
    "keep": "best",
    "patience": 2,
    "watch": "accuracy",
    "min_rounds": 3,
    "checkpoint_every": 2,
    "eval_clients": 0.5,
    "record_clients": ["corner"],
}
"""For every setting a value that is not its default."""
BESIDE_IT: dict[str, dict[str, Any]] = {
    "watch": {"patience": 2},
    "min_rounds": {"patience": 2},
    "head_own": {"heads": "task"},
}
"""What a setting cannot be without."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The weightings and settings that ``train`` was called with; nothing is trained."""
    found: list[Any] = []
    monkeypatch.setattr(
        train, "train_with", lambda _n, _c, weighting, how, *_, **__: found.append((weighting, how))
    )
    return found


def test_train_has_few_keywords_and_documents_each() -> None:
    parameters = inspect.signature(fgn.train).parameters
    assert len(parameters) <= 15
    assert len(inspect.signature(fgn.resume).parameters) <= 15
    assert set(parameters) >= {*OPTIONS, *TOP}
    text = inspect.getdoc(fgn.train) or ""
    for name, parameter in parameters.items():
        assert f"{name}:" in text or f"{name}, " in text, name
        if name in TOP:
            assert parameter.default == FIELDS[name].default, name


def test_every_setting_is_declared_once_with_default_check_and_documentation() -> None:
    declared = [f"{group}.{field.name}" for group in GROUPS for field in fields(GROUPS[group])]
    assert sorted([*declared, *TOP]) == sorted(map(key_of, FIELDS))
    assert sorted(FIELDS) == sorted(OTHER)
    for name, field in FIELDS.items():
        assert field.default is not MISSING
        assert field.metadata["text"].endswith("."), name
        field.metadata["check"](name, field.default)
    for group, kind in GROUPS.items():
        assert getattr(fgn, kind.__name__) is kind
        for field in fields(kind):
            assert f"{field.name}: " in (inspect.getdoc(kind) or ""), (group, field.name)


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_reaches_the_run_from_python(name: str, seen: list[Any]) -> None:
    given = {name: OTHER[name], **BESIDE_IT.get(name, {})}
    tables = keywords(given)
    objects = {k: OPTIONS[k](**v) if k in OPTIONS else v for k, v in tables.items()}
    for one in (tables, objects):
        fgn.train(toys.network(), [], **one)
    assert [how for _, how in seen] == 2 * [Settings(**given)]
    assert getattr(seen[0][1], name) == OTHER[name] != getattr(Settings(), name)


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_reaches_the_run_from_a_config(name: str, tmp_path: Path) -> None:
    base = load_config(small_config(tmp_path))
    plain = base.settings
    words = {name: OTHER[name], **BESIDE_IT.get(name, {})}
    changes = keyed(words)
    if name == "rounds":
        changes["epochs"] = "none"
    config = base.variant("fedgradnorm", base.seed if name != "seed" else OTHER[name], changes)
    wanted = {**words, **({"epochs": None} if name == "rounds" else {})}
    if name == "epochs":
        wanted["rounds"] = None
    assert config.settings == replace(plain, **wanted)
    written = tmp_path / "again.toml"
    written.write_text(config.text())
    assert load_config(written).settings == config.settings


def test_what_does_not_change_the_result_is_read_from_the_declaration() -> None:
    assert {
        "seed", "executor", "device", "compile", "log_every", "eval_every", "checkpoint_every",
        "folder", "cache", "eval_clients", "record_clients",
    } == BESIDE  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"head_steps": 5}, r"'head_steps' .*local=fgn\.Local\(head_steps=\.\.\.\)"),
        ({"keep": "best"}, r"callbacks=\[fgn\.KeepBest\(per_client=\.\.\.\)\]"),
        ({"start": None}, r"fgn\.train\(run, clients\)"),
        ({"resume": True}, r"fgn\.resume\(folder, network, clients\)"),
        ({"progress": True}, r"callbacks=\[fgn\.ShowProgress\(\)\]"),
        ({"head_step": 5}, "unknown setting 'head_step'; did you mean 'head_steps'"),
        ({"local": {"keep": "best"}}, r"'keep' is given among the callbacks"),
        ({"local": {"lr": 0.1}}, "'lr' belongs to no group"),
        ({"local": {"head_step": 5}}, "local: unknown setting 'head_step'; did you mean"),
        ({"local": fgn.Server()}, r"local must be fgn\.Local\(\.\.\.\) or a table"),
        ({"local": fgn.Local}, r"local must be fgn\.Local\(\.\.\.\) or a table"),
        ({"local": {"head_steps": -1}}, r"local\.head_steps must be a whole number >= 0, not -1"),
        ({"method": "fedporx"}, "unknown method 'fedporx'; did you mean 'fedprox'"),
        ({"method": fgn.GradNorm()}, "method must be a name .*given as weighting="),
        ({"weighting": "mgda"}, "a method is given as method='mgda'"),
        ({"callbacks": fgn.KeepBest()}, r"give \[KeepBest\(\.\.\.\)\]"),
        ({"lr": -1}, "lr must be > 0, not -1"),
        (
            {"method": "fedrep", "weighting": fgn.GradNorm()},
            "leave weighting out",
        ),
        (
            {"method": "fedgradnorm-direct", "weighting": fgn.GradNorm()},
            "rule='direct'",
        ),
        ({"method": "fedrep", "weighting": {"gamma": 1.0}}, "gamma"),
        (
            {"method": "fedprox", "local": {"sends": "delta"}},
            r"local\.sends = 'delta' conflicts with method 'fedprox'",
        ),
        (  # a default that somebody said
            {"method": "fedavg", "local": fgn.Local(sends="gradient")},
            r"local\.sends = 'gradient' conflicts with method 'fedavg', which is sends = 'model'",
        ),
        (
            {"method": "fedavg", "sharing": {"heads": "own"}},
            r"sharing\.heads = 'own' conflicts with method 'fedavg'",
        ),
    ],
)
def test_what_is_wrong_is_explained(given: dict[str, Any], words: str) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        fgn.train(toys.network(), toys.clients(), **given)


def test_what_is_shown_is_what_was_chosen() -> None:
    assert repr(fgn.Local(batch_size=8, head_steps=1)) == "Local(batch_size=8)"
    assert repr(fgn.GradNorm(rule="direct")) == "GradNorm(rule='direct')"
    assert repr(fgn.Static({"a": 1.0})) == "Static(weights={'a': 1.0})"
    assert repr(fgn.methods()["fedmgda"].build({"box": 0.2})) == "FedMGDA(box=0.2)"
    assert repr(fgn.methods()["uw"]) == "Method('uw': learned variance of every task)"


def test_a_copy_of_a_group_says_no_more_than_what_was_chosen(seen: list[Any]) -> None:
    local = replace(fgn.Local(batch_size=8), shared_steps=2)
    fgn.train(toys.network(), [], method="fedavg", local=local)
    assert (seen[0][1].batch_size, seen[0][1].shared_steps) == (8, 2)


def test_a_group_is_checked_when_it_is_made() -> None:
    with pytest.raises(fgn.ConfigError, match=r"local\.head_steps must be a whole number >= 0"):
        fgn.Local(head_steps=-1)


def test_a_method_is_its_weighting_and_settings(seen: list[Any]) -> None:
    fgn.train(toys.network(), [], method="fedprox")
    fgn.train(toys.network(), [], method="fedgradnorm-direct", weighting={"gamma": 0.5})
    fgn.train(toys.network(), [], method="fedgradnorm", weighting=fgn.GradNorm(gamma=0.5))
    fgn.train(toys.network(), [], weighting={"gamma": 0.5})
    fgn.train(toys.network(), [])
    fgn.train(toys.network(), [], sharing={"share": "none"})
    (prox, how), (direct, _), (own, _), (default, plain), (bare, _), (alone, _) = seen
    assert (bare.rule, bare.gamma, type(alone)) == ("direct", 0.9, fgn.Equal)
    assert isinstance(prox, fgn.Equal)
    assert (how.proximal, how.sends) == (0.01, "model")
    assert (direct.rule, direct.gamma) == ("direct", 0.5)
    assert own.gamma == default.gamma == 0.5
    assert plain == Settings()
    assert list(fgn.methods()) == list(METHODS)


@pytest.mark.parametrize(
    ("method", "name", "preset"),
    [("fedprox", "proximal", 0.01), ("ditto", "ditto", 0.1), ("fedbabu", "final_head_steps", 200)],
)
def test_what_a_method_lets_users_tune(
    method: str, name: str, preset: Any, seen: list[Any], tmp_path: Path
) -> None:
    """FedProx is tried with several values of mu: in Python, in a config and in a comparison."""
    group = {"ditto": fgn.Personalization, "fedbabu": fgn.Personalization}.get(method, fgn.Local)
    table = key_of(name).partition(".")[0]
    for value in (preset, 7, 0):  # 0 is the default, and counts where it is said
        for given in (group(**{name: value}), {name: value}):
            fgn.train(toys.network(), [], method=method, **{table: given})
    fgn.train(toys.network(), [], method=method)
    assert [getattr(how, name) for _, how in seen] == [preset, preset, 7, 7, 0, 0, preset]
    words = f"{key_of(name)}=7"
    config = load_config(small_config(tmp_path), [f"method={method}", words])
    assert getattr(config.settings, name) == 7
    (tmp_path / "again.toml").write_text(config.text())
    assert load_config(tmp_path / "again.toml").settings == config.settings
    plain = load_config(small_config(tmp_path), [f"method={method}"])
    assert f"\n{name} = " not in plain.text()
    assert read_entry(f"{method} {words}").own == {key_of(name): 7}
    assert felt_by({key_of(name): 7}, method) == {key_of(name): 7}  # a sweep runs each value
    assert getattr(plain.variant("fedrep", 0).settings, name) == getattr(Settings(), name)


def parameters(run: fgn.Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.shared.parameters()])


def same_in_both(name: str, folder: Path) -> None:
    """The method by name in Python, and in a config, are one run, bit for bit."""
    config = load_config(small_config(folder), [f"method={name}"])
    network, clients, *_ = build(config)
    written = execute(config, folder / "written")
    names = [n for n in FIELDS if n not in fgn.methods()[name].settings]
    given = keywords({n: getattr(config.settings, n) for n in names})
    run = fgn.train(network, clients, method=name, weighting=config.weighting, **given)
    assert torch.equal(parameters(run), parameters(written))
    assert run.history.equals(written.history)
    assert run.manifest["settings"] == written.manifest["settings"]
    assert run.manifest["weighting"] == written.manifest["weighting"]


def test_a_method_in_python_is_the_one_of_a_config(tmp_path: Path) -> None:
    same_in_both("fedprox", tmp_path)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_methods.py").write_text(
        "import fedgradnorm as fgn\n"
        "fgn.Method('halfway', fgn.GradNorm, {'rule': 'direct'},\n"
        "           {'local.proximal': 0.5, 'local.sends': 'model'}).register()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with METHODS.restored():
        importlib.import_module("own_methods")
        yield "halfway"


def test_a_registered_method_works_in_python_and_in_a_config(mine: str, tmp_path: Path) -> None:
    assert fgn.methods()[mine].settings == {"proximal": 0.5, "sends": "model"}
    same_in_both(mine, tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("fedprox", fgn.Equal), "'fedprox' exists already, from module fedgradnorm._methods"),
        (("own", fgn.Equal, {}, {"proximo": 1}), "'own': unknown setting 'proximo'"),
        (("own", fgn.Equal, {}, {"proximal": 1.0}, ["sends"]), "unknown setting .* in tunable 'se"),
        (("own", "equal"), "'own': weighting must be a class of fgn.Weighting"),
    ],
)
def test_a_method_that_cannot_be_is_refused(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(fgn.ConfigError, match=words):
        fgn.Method(*given).register()
    assert "own" not in fgn.methods()


def test_a_run_resumes_with_the_settings_it_was_started_with(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    how: dict[str, Any] = {"rounds": 6, "lr": 0.01, "local": {"batch_size": 8}}
    whole = fgn.train(toys.network(), toys.clients(), method="fedprox", **how)
    with pytest.raises(KeyboardInterrupt):
        fgn.train(
            toys.network(), toys.clients(), method="fedprox", **how,
            folder=tmp_path / "run", callbacks=[stop],
        )  # fmt: skip
    run = fgn.resume(tmp_path / "run", toys.network(), toys.clients())
    assert torch.equal(parameters(run), parameters(whole))


def test_a_run_continues_from_a_run() -> None:
    first = fgn.train(toys.network(), toys.clients(), rounds=2)
    more = fgn.train(first, toys.clients(), rounds=1, lr=1e-9)
    np.testing.assert_allclose(parameters(more), parameters(first), atol=1e-6)
    alone = fgn.train(toys.network(), toys.clients(), rounds=2, method="local")
    again = fgn.train(alone, toys.clients(), rounds=1, lr=1e-9, method="local")
    name = toys.NAMES[0]
    one, other = (next(run.networks[name].parameters()) for run in (alone, again))
    np.testing.assert_allclose(one.detach(), other.detach(), atol=1e-6)
    with pytest.raises(fgn.ConfigError, match="has no network to start from"):
        fgn.train(alone, [replace(toys.clients()[0], name="new")], rounds=1, method="local")


def test_functions_and_displays_are_callbacks(capsys: pytest.CaptureFixture[str]) -> None:
    rounds: list[int] = []
    fgn.train(
        toys.network(),
        toys.clients(),
        rounds=2,
        callbacks=[lambda event: rounds.append(event.round), fgn.ShowProgress()],
    )
    assert rounds == [1, 2]
    assert "round 2/2" in capsys.readouterr().err
