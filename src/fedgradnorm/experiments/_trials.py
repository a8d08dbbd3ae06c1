"""The runs of a comparison: methods x seeds x points of a sweep, planned before any starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgradnorm._checks import shortened
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._runs.difference import difference
from fedgradnorm._runs.files import present
from fedgradnorm._runs.layout import CONFIG, MANIFEST
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm.experiments._config.config_file import Config
from fedgradnorm.experiments._entries import FROZEN_FROM, Entry
from fedgradnorm.experiments._execute import resume_config
from fedgradnorm.experiments._sweep import Point, felt_by, file_name, point_name, points

Facts = Mapping[str, object]

MOST = 100_000
"""Runs of one comparison."""

LONGEST = 200
"""Bytes of a run folder's name; file systems allow 255."""


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: what it is, where it is, and whether it was there already."""

    entry: Entry
    config: Config
    folder: Path
    finished: bool

    @property
    def title(self) -> str:
        """The method with what is its own, the point and the seed."""
        point = point_name(self.config.point)
        return " ".join(filter(None, (self.entry.label, point, f"seed {self.config.seed}")))


def plan(config: Config, entries: Sequence[Entry], seeds: int, folder: Path) -> list[Trial]:
    """Every run, seed by seed and point by point; what a method does not feel is run once."""
    swept = points(config.sweep)
    if seeds * len(swept) * len(entries) > MOST:
        raise ConfigError(
            f"{len(entries)} methods x {seeds} seeds x {len(swept)} points of the sweep are more "
            f"than {MOST} runs; make several comparisons of it"
        )
    trials: dict[Path, Trial] = {}
    for seed in range(config.seed, config.seed + seeds):
        for point in swept:
            for entry in entries:
                trial = _trial(config, entry, seed, point, folder)
                _refuse_twin(trial, [t for t in trials.values() if t.config.seed == seed])
                trials.setdefault(trial.folder, trial)
    return list(trials.values())


def _refuse_twin(trial: Trial, others: Sequence[Trial]) -> None:
    """Refuse an entry that is another one in all but its words, or would lie in its folder."""
    for other in others:
        mine, theirs = trial.entry, other.entry
        if mine.method != theirs.method or mine == theirs:
            continue
        if trial.folder == other.folder or _essence(trial.config) == _essence(other.config):
            raise ConfigError(
                f"{trial.entry.label!r} and {other.entry.label!r} are one and the same run"
            )


def _trial(config: Config, entry: Entry, seed: int, point: Point, parent: Path) -> Trial:
    method = entry.method
    source = FROZEN_FROM if entry.needs_a_run else method
    felt = felt_by(point, source)
    changes = {**config.compare.changes(method), **felt_by(felt, method)}
    if entry.needs_a_run:
        changes["weighting.folder"] = str(parent / run_name(source, seed, felt))
    wanted = config.variant(method, seed, changes, felt, entry.own)
    place = parent / run_name(entry.label, seed, felt)
    return Trial(entry, wanted, place, is_finished(wanted, place))


def run_name(label: str, seed: int, point: Point) -> str:
    """The folder's name of a run."""
    name = file_name("-".join(filter(None, (label, point_name(point), f"seed{seed}"))))
    if len(name.encode()) > LONGEST:
        raise ConfigError(
            f"a folder cannot be called {shortened(name, 100)!r}: its own settings and points "
            f"of a sweep must be shorter than {LONGEST} bytes"
        )
    return name


def is_finished(config: Config, folder: Path) -> bool:
    """Whether this run is there and done; a run of another config in its place is an error."""
    if not present(folder / CONFIG):
        return False
    there, wanted = _essence(resume_config(folder)), _essence(config)
    if there != wanted:
        raise RunFolderError(
            f"{folder} holds a run of another config ({difference(there, wanted)}); remove it, or "
            "choose another name or output.folder"
        )
    return present(folder / MANIFEST) and bool(read_manifest(folder)["finished"])


_NAMES = ("name", "output", "point", "own")


def _essence(config: Config) -> Facts:
    """What decides the numbers of a run."""
    return {k: v for k, v in config.table().items() if k not in _NAMES}
