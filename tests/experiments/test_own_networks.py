"""A custom network is a program: it runs where its user has allowed it, and nowhere else."""

from __future__ import annotations

import sys

import pytest

from experiments.small_config import small_config
from fedgradnorm._errors import ConfigError, ModelError
from fedgradnorm.experiments._config.config_file import build, load_config
from fedgradnorm.experiments._config.named_networks import VARIABLE
from fedgradnorm.experiments._execute import execute, resume_config

MODULE = """
import os
from os import system
from functools import partial
from torch import nn
from torch.nn import Linear

def make(inputs, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width))

def text():
    return "no network"

def broken(inputs):
    return {}["nothing"]

class Net(Linear):
    def __init__(self, inputs):
        super().__init__(inputs, 3)

number = 3
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config whose network is ``mine:make``, and a module that leaves a mark when imported."""
    path = small_config(tmp_path)
    named = 'name = "mine:make"\nwidth = 6'
    path.write_text(path.read_text().replace('name = "mlp"\nwidths = [6, 5]', named))
    mark = f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    (tmp_path / "mine.py").write_text(mark + MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield path
    sys.modules.pop("mine", None)


def refusal(path, *words, allow=(), error=ConfigError):
    with pytest.raises(error) as caught:
        build(load_config(path, words, allow=allow))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_is_imported_without_permission(config, tmp_path):
    said = refusal(config)
    assert not (tmp_path / "imported").exists()
    for way_out in ("--allow-module mine", f"{VARIABLE}=mine", "allow=['mine']"):
        assert way_out in said
    assert "not allowed" in refusal(config, allow=["min", "mine.make", "mine:make", ""])
    assert "not allowed" in refusal(config, "network.name=mine.sub:make", allow=["mine"])
    assert not (tmp_path / "imported").exists()


def test_permission_is_given_where_the_config_is_read(config, monkeypatch):
    assert build(load_config(config, allow=["mine"]))[0][1].out_features == 6
    monkeypatch.setenv(VARIABLE, "other, mine")
    assert build(load_config(config))[0][1].out_features == 6


def test_permission_goes_with_a_variant_and_never_into_its_text(config, tmp_path):
    wanted = load_config(config, allow=["mine"])
    assert wanted.variant("fedrep", 1).allowed == ("mine",)
    assert "allow" not in wanted.text()
    execute(wanted, tmp_path / "run")
    with pytest.raises(ConfigError, match="not allowed"):
        execute(resume_config(tmp_path / "run"), tmp_path / "run", resume=True)
    again = resume_config(tmp_path / "run", allow=["mine"])
    assert execute(again, tmp_path / "run", resume=True).finished


@pytest.mark.parametrize("key", ["allow", "_allow", "allowed", "network._allow", "output.allow"])
def test_no_key_of_a_config_allows_anything(config, tmp_path, key):
    refusal(config, f'{key}=["mine"]')
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("name", ["system", "os", "os.system", "partial", "number", "__import__"])
def test_what_a_module_borrows_is_no_factory_of_its_own(config, name):
    said = refusal(config, f"network.name=mine:{name}", allow=["mine"])
    assert "factory" in said


def test_networks_it_makes_or_borrows_are(config):
    words = ['network={name="mine:Net"}']
    assert build(load_config(config, words, allow=["mine"]))[0].out_features == 3
    words = ['network={name="mine:Linear", in_features=3, out_features=2}']
    assert build(load_config(config, words, allow=["mine"]))[0].out_features == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine:mak", "did you mean 'make'"),
        ("nowhere:make", "imported"),
        (":x", "package.module"),
        ("mine:", "package.module"),
        ("..mine:make", "package.module"),
        ("mine:make:make", "package.module"),
        ("failing:make", "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_with_it_is_said(config, tmp_path, name, says):
    (tmp_path / "failing.py").write_text("1 / 0\n")
    words = [f"network.name={name}"]
    assert says in refusal(config, *words, allow=["mine", "nowhere", "failing", ""])


def test_a_factory_that_fails_or_gives_no_network_is_named(config):
    assert "'nothing'" in refusal(config, 'network={name="mine:broken"}', allow=["mine"])
    said = refusal(config, 'network={name="mine:text"}', allow=["mine"], error=ModelError)
    assert "gave a str, not an nn.Module" in said


def test_a_class_of_ones_own_goes_on_from_its_run(config, tmp_path):
    """Its run folder cannot rebuild the class, but the config's network is an instance of it."""
    mine = load_config(config, ["network={name='mine:Net'}"], allow=["mine"])
    first = execute(mine, tmp_path / "first")
    second = execute(mine, tmp_path / "second", start=tmp_path / "first")
    assert second.manifest["start"]["heads"] == list(first.clients)
