"""The page of wants: every line of its tables does what it stands for."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedgradnorm._cli import app
from fedgradnorm.experiments._config.config_file import clients_of, load_config
from fedgradnorm.experiments._config.toml_text import to_toml

PAGE = (Path(__file__).parents[1] / "docs" / "wants.md").read_text(encoding="utf-8")
HEADER = "| you want | in Python | in a config or on the command line |"


def block(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)[0]


def lines(column: int) -> list[tuple[str, list[str]]]:
    """Every want and what stands in backticks in that column of its row."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line != HEADER]
    assert PAGE.count(HEADER) == PAGE.count("\n## ")
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    found = [
        (row[0], re.findall(r"`([^`]+)`", row[column] if column < len(row) else ""))
        for row in cells
    ]
    return [(want, each) for want, each in found if each]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the page's first block leaves, in a folder of its own."""
    folder, names = tmp_path_factory.mktemp("wants"), dict[str, Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(block("python"), names)
    (folder / "pumps.toml").write_text(block("toml"))
    return {**names, "folder": folder}


def test_every_line_of_python_runs(here, monkeypatch) -> None:
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(here["folder"])
    found = lines(1)
    assert len(found) > 25
    for want, (line,) in found:
        assert eval(line, dict(here)) is not None, want


def test_every_line_of_a_config_makes_clients_and_every_command_ends_well(
    here, monkeypatch
) -> None:
    monkeypatch.chdir(here["folder"])
    base, path = tomllib.loads(block("toml")), here["folder"] / "line.toml"
    for want, parts in lines(2):
        if parts[0].startswith("fedgradnorm "):
            (line,) = parts
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            assert done.exit_code == 0, (want, done.output)
            continue
        keys = tomllib.loads("\n".join(parts))
        whole = {key: value for key, value in keys.items() if key in ("output", "training")}
        client = {key: value for key, value in keys.items() if key not in whole}
        data = {**base["data"], "clients": [{**base["data"]["clients"][0], **client}]}
        path.write_text(to_toml({**base, "data": data, **whole}))
        assert len(clients_of(load_config(path))) == 1, want
