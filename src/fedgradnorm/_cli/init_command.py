"""``init``: a folder to start from."""

from __future__ import annotations

import csv
import math
import random
import shlex
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgradnorm._cli.output import say
from fedgradnorm._errors import ConfigError

CONFIG = "pumps.toml"
STATE, HOURS = "state", "hours_left"
PLANTS = {
    **dict.fromkeys(("north", "east", "hill"), STATE),
    **dict.fromkeys(("south", "west", "lake"), HOURS),
}
"""What each plant has written down of its pumps."""
BANDS, NOISE = 12, 0.05
ROWS = 400
"""Rows of each file."""


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="A new or empty folder.", show_default=False)
    ] = Path(),
) -> None:
    """Write a config with comments and six small CSV files to start from.

    Without FOLDER it uses the working folder. A folder that is not empty is refused. The data is
    generated; replace it with your own files.

    Example:

    - `fedgradnorm init pumps`
    """
    if folder.is_dir() and any(folder.iterdir()):
        place = "the working folder" if folder == Path() else str(folder)
        raise ConfigError(f"{place} is not empty; name a new folder: fedgradnorm init FOLDER")
    starter = (files("fedgradnorm._cli") / "starter.toml").read_text(encoding="utf-8")
    chance = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for plant, target in PLANTS.items():
        _write(folder / f"{plant}.csv", target, (_pump(chance) for _ in range(ROWS)))
    (folder / CONFIG).write_text(starter, encoding="utf-8")
    config = shlex.quote(str(folder / CONFIG))
    say(f"wrote {folder / CONFIG} and {len(PLANTS)} CSV files ({ROWS} generated rows each)")
    say(f"train it:         fedgradnorm run {config}")
    say(f"compare methods:  fedgradnorm compare {config} --seeds 3")
    say(f"measure benefit:  fedgradnorm benefit {config}")


def _pump(chance: random.Random) -> dict[str, str | int | list[float]]:
    """A pump's vibration spectrum, its state, and the hours that it has left.

    A peak moves up the spectrum as the bearing wears, and another one down as the pump clogs.
    """
    wear, clog = chance.random(), chance.random()
    spectrum = []
    for band in range(BANDS):
        place = band / (BANDS - 1)
        bearing = math.exp(-(((place - 0.2 - 0.6 * wear) / 0.12) ** 2))
        clogging = 0.8 * math.exp(-(((place - 0.8 + 0.5 * clog) / 0.15) ** 2))
        spectrum.append(1 + bearing + clogging + chance.gauss(0, NOISE))
    state = "worn" if wear > 2 / 3 else "clogged" if clog > 0.6 else "fine"
    return {"spectrum": spectrum, STATE: state, HOURS: round(5000 * (1 - wear) * (1 - clog / 2))}


def _write(path: Path, target: str, pumps: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"band_{band + 1}" for band in range(BANDS)), target])
        for pump in pumps:
            writer.writerow([*(f"{value:.2f}" for value in pump["spectrum"]), pump[target]])
