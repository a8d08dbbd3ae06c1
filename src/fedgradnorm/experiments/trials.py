"""The runs of a comparison: methods x seeds x points of a sweep, planned before any starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgradnorm.errors import ConfigError, RunFolderError
from fedgradnorm.experiments.config import Config
from fedgradnorm.experiments.execute import CONFIG, resume_config
from fedgradnorm.experiments.methods import find_method
from fedgradnorm.experiments.run import ABOUT, read_about
from fedgradnorm.experiments.sweep import Point, felt_by, file_name, point_name, points

FROZEN_FROM = "fedgradnorm"
"""The method whose averaged weights the static ones are made of."""


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: what it is, where it is, and whether it was there already."""

    config: Config
    folder: Path
    finished: bool

    @property
    def title(self) -> str:
        """The method, the point and the seed."""
        point = point_name(self.config.point)
        return " ".join(filter(None, (self.config.method, point, f"seed {self.config.seed}")))


def check_request(methods: Sequence[str], seeds: int) -> None:
    """Refuse a comparison of nothing, of a method with itself, or of unknown methods."""
    if not methods:
        raise ConfigError("no methods to compare: name at least one, for example fedrep")
    if seeds < 1:
        raise ConfigError(f"the number of seeds must be at least 1, not {seeds}")
    twice = next((name for name in methods if methods.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"method {twice!r} is named twice; name each once")
    frozen = next((name for name in methods if needs_a_run(name)), None)
    if frozen is not None and FROZEN_FROM not in methods:
        raise ConfigError(f"{frozen} takes the weights of {FROZEN_FROM}: compare both")


def needs_a_run(method: str) -> bool:
    """Whether the method starts from another run's folder."""
    return "folder" in find_method(method).options()


def plan(config: Config, methods: Sequence[str], seeds: int, folder: Path) -> list[Trial]:
    """Every run, seed by seed and point by point; what a method does not feel is run once."""
    trials: dict[Path, Trial] = {}
    for seed in range(config.seed, config.seed + seeds):
        for point in points(config.sweep):
            for method in methods:
                trial = _trial(config, method, seed, point, folder)
                trials.setdefault(trial.folder, trial)
    return list(trials.values())


def _trial(config: Config, method: str, seed: int, point: Point, parent: Path) -> Trial:
    source = FROZEN_FROM if needs_a_run(method) else method
    felt = felt_by(point, source)
    changes = {**config.compare.changes(method), **felt_by(felt, method)}
    if needs_a_run(method):
        changes["weighting.folder"] = str(parent / run_name(source, seed, felt))
    wanted = config.variant(method, seed, changes, felt)
    place = parent / run_name(method, seed, felt)
    return Trial(wanted, place, is_finished(wanted, place))


def run_name(method: str, seed: int, point: Point) -> str:
    """The folder's name of a run."""
    return file_name("-".join(filter(None, (method, point_name(point), f"seed{seed}"))))


def is_finished(config: Config, folder: Path) -> bool:
    """Whether this run is there and done; a run of another config in its place is an error."""
    if not (folder / CONFIG).exists():
        return False
    if _essence(resume_config(folder)) != _essence(config):
        raise RunFolderError(
            f"{folder} holds a run of another config; remove it, or choose another name or "
            "output.folder"
        )
    return (folder / ABOUT).exists() and bool(read_about(folder)["finished"])


def _essence(config: Config) -> dict[str, object]:
    """What decides the numbers of a run."""
    return {k: v for k, v in config.table().items() if k not in ("name", "output", "point")}
