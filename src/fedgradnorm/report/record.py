"""A run as a report needs it: its label and its history, finished or not, without its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgradnorm.errors import ConfigError, RunFolderError
from fedgradnorm.experiments.execute import CONFIG
from fedgradnorm.experiments.history import read_history
from fedgradnorm.experiments.run import ABOUT, METRICS, Run, read_about
from fedgradnorm.experiments.summary import TaskResult, results
from fedgradnorm.experiments.toml_text import read_toml

if TYPE_CHECKING:
    from fedgradnorm.experiments.history import Row


@dataclass(frozen=True)
class Record:
    """What a run's tables and figures are made from; runs of one label are seeds of one method."""

    label: str
    seed: int
    rows: list[Row]
    finished: bool = True

    @property
    def clients(self) -> list[str]:
        """The clients' names, in their order."""
        return list(dict.fromkeys(row["client"] for row in self.rows))

    def results(self) -> list[TaskResult]:
        """The run in a few numbers per client."""
        return results(self.rows)

    def series(self, client: str, split: str, column: str) -> tuple[list[float], list[float]]:
        """Epochs and values of a column, wherever the split has them."""
        points = [
            (row["epoch"], row[column])
            for row in self.rows
            if row["client"] == client and row["split"] == split and column in row
        ]
        return [epoch for epoch, _ in points], [value for _, value in points]


def record_of(run: Run, label: str | None = None) -> Record:
    """The record of a run in memory."""
    return Record(
        label or _label(run.about), run.about["settings"]["seed"], run.table.rows, run.finished
    )


def read_record(folder: Path) -> Record:
    """The record of a run folder, finished or not."""
    about = read_about(folder)
    rows = read_history(folder / METRICS).rows
    return Record(
        _method(folder) or _label(about), about["settings"]["seed"], rows, about["finished"]
    )


def find_runs(places: Sequence[Path]) -> list[Path]:
    """Run folders among ``places``; a folder of runs, such as a comparison, stands for its runs."""
    found: list[Path] = []
    for place in places:
        if (place / ABOUT).is_file():
            found.append(place)
            continue
        inside = sorted((path.parent for path in place.glob(f"*/{ABOUT}")), key=_started)
        if not inside:
            raise RunFolderError(f"{place} is no run folder and holds none: no {ABOUT} there")
        found += inside
    return list(dict.fromkeys(found))


def _started(folder: Path) -> tuple[str, str]:
    """The order in which runs were started is the one their user chose."""
    return read_about(folder)["started"], folder.name


def _method(folder: Path) -> str | None:
    """The method's name, from the config as it stands: an old one may not be valid any more."""
    path = folder / CONFIG
    if not path.exists():
        return None  # a run made from Python
    try:
        return str(read_toml(path)["method"])
    except (ConfigError, KeyError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error


def _label(about: dict[str, Any]) -> str:
    """A name for a run made from Python: its weighting and rule."""
    weighting = about["weighting"]
    return " ".join(filter(None, (weighting["name"], weighting.get("rule"))))
