"""``init``: a folder to start from."""

from __future__ import annotations

import csv
import random
import shlex
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.output import say
from fedgradnorm._errors import ConfigError

CONFIG = "pumps.toml"
Row = tuple[tuple[float, ...], str | int]
SENSORS = ("flow", "pressure", "noise", "heat")
ROWS = 400
"""Rows of each of the two files."""


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="A new or empty folder.", show_default=False)
    ] = Path(),
) -> None:
    """Write a config with comments and two small CSV files to start from.

    Asks nothing, and says what to run next. Without FOLDER it takes the working folder. A folder
    that is not empty is refused. The rows are made up; replace them with your own files.

    Example:

    - `fedgradnorm init pumps`
    """
    _check_empty(folder)
    starter = (files("fedgradnorm._cli") / "starter.toml").read_text(encoding="utf-8")
    chance = random.Random(0)
    pumps = [_pump(chance) for _ in range(2 * ROWS)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "north.csv", "state", ((at, state) for at, state, _ in pumps[:ROWS]))
        _write(folder / "south.csv", "hours_left", ((at, left) for at, _, left in pumps[ROWS:]))
        (folder / CONFIG).write_text(starter, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error}); name another folder") from None
    config = shlex.quote(str(folder / CONFIG))
    say(f"wrote {folder / CONFIG}, north.csv and south.csv ({ROWS} made-up rows each)")
    say(f"train it:         fedgradnorm run {config}")
    say(f"compare methods:  fedgradnorm compare {config} --seeds 3")
    say(f"measure benefit:  fedgradnorm benefit {config}")


def _check_empty(folder: Path) -> None:
    if folder.is_dir():
        found = sorted(path.name for path in folder.iterdir())
        if found:
            place = "the working folder" if folder == Path() else str(folder)
            raise ConfigError(
                f"{place} is not empty: it holds {found[0]!r}; name a new folder: "
                "fedgradnorm init FOLDER"
            )
    elif folder.exists():
        raise ConfigError(f"{folder} is a file; name a new folder")


def _pump(chance: random.Random) -> tuple[tuple[float, ...], str, int]:
    """What the sensors say of a pump, its state, and the hours that it has left."""
    wear, clog = chance.random(), chance.random()
    sensors = (
        900 - 300 * clog + chance.gauss(0, 20),
        2 + 3 * clog + chance.gauss(0, 0.2),
        40 + 30 * wear + chance.gauss(0, 2),
        60 + 25 * wear * clog + chance.gauss(0, 1),
    )
    state = "worn" if wear > 0.7 else "clogged" if clog > 0.6 else "fine"
    return sensors, state, round(5000 * (1 - wear) * (1 - clog / 2))


def _write(path: Path, target: str, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*SENSORS, target])
        for sensors, value in rows:
            writer.writerow([*(f"{number:.2f}" for number in sensors), value])
