"""The cookbook: every line of its tables does what it promises."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedgradnorm as fgn
from fedgradnorm._cli import app
from fedgradnorm._round.settings import GROUPS
from fedgradnorm._toml import to_toml
from fedgradnorm.experiments import run as execute
from fedgradnorm.experiments._config.config_file import clients_of, load_config

PAGE = (Path(__file__).parents[1] / "docs" / "cookbook.md").read_text(encoding="utf-8")
PYTHON = "| you want | in Python |"
CONFIG = "| you want | in a config or on the command line |"
MODULE = "pump_networks"
BY_RULE: list[tuple[str, list[str]]] = [
    ("classification", ['task = "classification"', 'targets = "state"']),
    ("several labels at once", ['task = "multilabel"', 'targets = ["hot", "loud"]']),
    ("ordered classes", ['task = "ordinal"', 'targets = "state"', 'labels = ["fine", "worn"]']),
    (
        "balanced classes",
        ['task = "classification"', 'targets = "state"', 'class_weights = "balanced"'],
    ),
    (
        "metrics by name; the first one is shown in tables",
        ['task = "classification"', 'targets = "state"', 'metrics = ["auroc", "f1"]'],
    ),
    (
        "everything shared except normalization layers (FedBN)",
        ['network.name = "pump_networks:layers"', 'sharing.shared = "!*Norm*"'],
    ),
    (
        "some layers frozen",
        ['network.name = "pump_networks:layers"', 'sharing.frozen = ["encoder", "norm.bias"]'],
    ),
    (
        "another norm layer",
        ['network.name = "pump_networks:layers"', 'sharing.norm_layer = "encoder"'],
    ),
    (
        "a learning rate schedule",
        ['server.server_schedule = "cosine"', 'local.head_schedule = "cosine"'],
    ),
    ("gradient clipping", ["local.clip = 1.0", "local.head_clip = 1.0"]),
    ("weight decay", ['server.server_optimizer = { name = "adamw", weight_decay = 0.01 }']),
    ("heads that start at random", ['sharing.head_init = "random"']),
    ("a categorical input", ['inputs = ["load", "kind"]', 'categories = ["kind"]']),
    ("missing inputs filled", ['inputs = ["load", "oil"]', 'missing = "median"']),
    (
        "missing inputs filled and marked",
        ['inputs = ["load", "oil"]', 'missing = { oil = "indicator" }'],
    ),
    (
        "dates as inputs",
        ['inputs = ["load", "when"]', 'dates = { when = ["hour", "weekday", "elapsed"] }'],
    ),
    ("a cyclic input", ['inputs = ["load", "angle"]', "cyclic = { angle = 360 }"]),
    ("an input that this client does not have", ['without = ["heat"]']),
    ("a split by a column", ['split = { column = "part" }']),
    ("a split by group", ['split = { group = "owner", test = 0.2 }']),
    (
        "a fixed list of labels",
        ['task = "classification"', 'targets = "state"', 'labels = ["fine", "worn", "broken"]'],
    ),
    (
        "a binary target from a number",
        ['task = "binary"', "above = 5000", 'labels = ["short", "long"]'],
    ),
    ("one task name for several clients (`weight_per`, `heads`)", ['task_name = "life"']),
    ("bad examples left out", ['inputs = ["oil"]', 'on_bad = "drop"']),
    ("another method", ['method = "fedprox"']),
    ("options of a method", ['method = "fedgradnorm"', "weighting.gamma = 0.5"]),
    ("each client alone", ['method = "local"']),
    ("several local steps per round", ["local.head_steps = 5", "local.shared_steps = 5"]),
    ("half of the clients per round", ["server.participation = 0.5"]),
    ("heads fine-tuned after training", ["personalization.personalize = { steps = 10 }"]),
    ("a personal network next to the shared one (Ditto)", ['method = "ditto"']),
]
"""Lines that the page leaves to its rule: keys have the names of the arguments of Python."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def lines(header: str) -> list[tuple[str, list[str]]]:
    """The title of every row of the tables with that header, and its code."""
    sections = PAGE.count("\n## ") - 2 if header == PYTHON else 1  # the last one has the files
    tables = re.findall(rf"^{re.escape(header)}\n\|---\|---\|\n((?:\|.*\n)*)", PAGE, flags=re.M)
    assert len(tables) == sections
    rows = [row.strip("|").split(" | ") for table in tables for row in table.splitlines()]
    return [(title.strip(), re.findall(r"`([^`]+)`", code)) for title, code in rows]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the page's blocks leave, in a folder of its own."""
    folder, names = tmp_path_factory.mktemp("cookbook"), dict[str, Any]()
    program, module = blocks("python")
    (folder / f"{MODULE}.py").write_text(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(module + program, names)
    (folder / "pumps.toml").write_text(blocks("toml")[0])
    return {**names, "folder": folder}


def test_every_line_of_python_runs(here, monkeypatch) -> None:
    monkeypatch.chdir(here["folder"])
    found = lines(PYTHON)
    assert len(found) > 35
    for title, (line,) in found:
        if re.match(r"\w+=", line):  # an argument, as the page says
            line = f"fgn.train(network, [a, b], {line}, rounds=2)"
        made = eval(line, dict(here))
        assert made is not None, title
        assert not isinstance(made, fgn.Run) or made.finished, title


def whole_config(keys: dict[str, Any]) -> dict[str, Any]:
    """The page's config with a line's keys in it, by the rules that the page states."""
    base = tomllib.loads(blocks("toml")[0])
    whole = ("method", "weighting", "network", "output", *GROUPS)
    tables = {key: keys.pop(key) for key in whole if key in keys}
    data, (client,) = dict(base["data"]), base["data"]["clients"]
    if "tasks" in keys:
        client = {"name": client["name"]}
    if keys.get("train", "").endswith(".npz"):
        data = {"source": "files"}
        client = {key: value for key, value in client.items() if key != "targets"}
    return {**base, "data": {**data, "clients": [{**client, **keys}]}, **tables}


def test_every_line_of_a_config_runs_and_every_command_ends_well(here, monkeypatch) -> None:
    monkeypatch.chdir(here["folder"])
    path, found = here["folder"] / "line.toml", [*lines(CONFIG), *BY_RULE]
    assert len(found) >= 40
    for number, (title, parts) in enumerate(found):
        if parts[0].startswith("fedgradnorm "):
            (line,) = parts
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exit_code == 0, (title, done.output)
            continue
        table = whole_config(tomllib.loads("\n".join(parts)))
        path.write_text(to_toml(table))
        config = load_config(path, allow=[MODULE])
        if "output" in table:  # a sink is tried by the line of Python beside it
            assert clients_of(config), title
        else:
            assert execute(config, here["folder"] / f"run-{number}").finished, title
