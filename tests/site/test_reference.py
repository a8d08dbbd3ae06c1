"""No command, option, config key or public name is missing from the site, or without a meaning."""

from __future__ import annotations

import html
import importlib
import inspect
import re
from pathlib import Path

import click
import pytest
import typer

from fedgradnorm import Privacy
from fedgradnorm._cli import app
from fedgradnorm._flower.federation_file import ClientFile, FederationFile, TaskTerms
from fedgradnorm._methods import METHODS
from fedgradnorm._options import options_of
from fedgradnorm._round.settings import FIELDS, GROUPS, key_of
from fedgradnorm.data._source import SOURCES
from fedgradnorm.experiments._config.config_file import Config
from fedgradnorm.experiments._config.meanings import meanings
from fedgradnorm.experiments._config.named_networks import NETWORKS
from test_public_surface import SURFACE

pytestmark = pytest.mark.slow


def page(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text(encoding="utf-8")


def shown_keys(site: Path, name: str = "config") -> set[str]:
    """What stands as a term on a page of keys."""
    terms = re.findall(r"<dt>(.*?)</dt>", page(site, f"reference/{name}"), flags=re.S)
    return {html.unescape(re.sub(r"<.*?>", "", term)).split(" · ")[0].strip() for term in terms}


def commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    inner = command.commands if isinstance(command, click.Group) else {}
    below = [pair for name, one in inner.items() for pair in commands(one, f"{path} {name}")]
    return [(path, command), *below]


ALL = commands(typer.main.get_command(app), "fedgradnorm")


def test_every_command_and_option_is_described(site):
    text = html.unescape(re.sub(r"<.*?>", "", page(site, "reference/commands")))
    for path, command in ALL:
        assert f"{path}" in text, path
        assert command.help, path
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                assert getattr(parameter, "help", ""), f"{path}: {parameter.name} says nothing"
                name = (
                    parameter.opts[0] if isinstance(parameter, click.Option) else parameter.metavar
                )
                assert str(name) in text, f"{path}: {name}"


def keys_of_functions() -> dict[str, set[str]]:
    """Keys that are arguments of a function, by their table."""
    sources = {name: source.function for name, source in SOURCES.items()}
    given = {
        "data": [f for name, f in sources.items() if name != "files"],
        "data.clients": [sources["files"]],
        "network": list(NETWORKS.values()),
        "weighting": [method.weighting for method in METHODS.values()],
        "privacy": [Privacy],
    }
    for functions in given.values():
        for function in functions:
            missing = set(options_of(function)) - set(meanings(function))
            assert not missing, f"{function.__qualname__} says nothing of {missing}"
    return {
        table: {n for f in functions for n in options_of(f, without=("progress",))} - {"source"}
        for table, functions in given.items()
    }


def test_every_key_of_a_config_is_described(site):
    shown = shown_keys(site)
    tables = {"data", "network", *GROUPS, "weighting", "privacy", "output", "compare"}
    wanted = {name for name in Config.model_fields if name not in tables}
    wanted |= {key_of(name) for name in FIELDS}
    for name in ("output", "compare"):
        model = Config.model_fields[name].annotation
        wanted |= {f"{name}.{key}" for key in model.model_fields}
        assert all(field.description for field in model.model_fields.values()), name
    for table, keys in keys_of_functions().items():
        wanted |= {f"{table}.{key}" for key in keys}
    assert wanted - shown == set()
    assert all(field.description for field in Config.model_fields.values())


@pytest.mark.parametrize(
    ("file", "prefix"), [(FederationFile, ""), (TaskTerms, "tasks.TASK."), (ClientFile, "")]
)
def test_every_key_of_a_federation_is_described(site, file, prefix):
    wanted = set(options_of(file, without=("folder",)))
    assert wanted - set(meanings(file)) == set()
    assert {f"{prefix}{name}" for name in wanted} - shown_keys(site, "federation") == set()


def test_every_setting_has_a_meaning_and_numbers_have_a_range():
    for name, field in FIELDS.items():
        assert field.metadata["text"], f"{name}: say what it means"
        if field.type in ("int", "float", "int | None", "float | None"):
            assert field.metadata["allowed"], f"{name}: say what it may be"


@pytest.mark.parametrize("package", SURFACE)
def test_every_public_name_is_described(site, package):
    module = importlib.import_module(package)
    room = "data" if package.startswith("fedgradnorm.data") else package.rpartition(".")[2]
    text = page(site, f"reference/{room}")
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        assert f'id="{package}.{name}"' in text or f"{package}.{name}</" in text, name
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{package}.{name} has no docstring"
