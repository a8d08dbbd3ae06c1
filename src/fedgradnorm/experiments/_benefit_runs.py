"""A config trained together and alone, from one seed or several, and the benefit of each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgradnorm._benefit.benefit import Benefit, over_seeds
from fedgradnorm._benefit.measuring import By, testable
from fedgradnorm._errors import ConfigError, TrainingError
from fedgradnorm._methods import LOCAL
from fedgradnorm._round.settings import keyed
from fedgradnorm._runs.loading import load
from fedgradnorm._training.benefit import warn_of_overfitting
from fedgradnorm.data._sources import DataProgress
from fedgradnorm.experiments._compare import (
    DataOf,
    Trial,
    Watch,
    is_finished,
    run_name,
    run_trials,
)
from fedgradnorm.experiments._config.config_file import Config, build, check
from fedgradnorm.experiments._entries import Entry
from fedgradnorm.experiments._execute import LoadedData, output_folder

Pair = tuple[Trial, Trial]
"""A seed's two runs: joined, and alone."""


def benefit(
    config: Config,
    seeds: int = 1,
    *,
    folder: str | Path | None = None,
    by: By = "score",
    jobs: int = 1,
    watch: Watch | None = None,
    data_progress: DataProgress | None = None,
) -> Benefit:
    """Train the config's method, and each client alone, from each seed; the mean over seeds.

    The runs are in ``<output>/<name>-benefit`` unless ``folder`` says otherwise: the method's and
    ``local``'s. Called again, it keeps what is finished and resumes what is not.
    """
    place = benefit_folder(config) if folder is None else Path(folder)
    pairs = _pairs(config, seeds, place)
    trials = [trial for pair in pairs for trial in pair]
    for trial in trials:
        check(trial.config)
    data = DataOf(data_progress)
    warn_of_overfitting(testable(data(trials[0].config).clients, by), config.settings)
    if failures := run_trials(trials, jobs, watch, data):
        raise TrainingError(f"{len(failures)} of {len(trials)} runs failed: {failures[0]}")
    found = [_benefit(pair, data(pair[0].config), by) for pair in pairs]
    return found[0] if len(found) == 1 else over_seeds(found)


def benefit_folder(config: Config) -> Path:
    return output_folder(config) / f"{config.name}-benefit"


def _pairs(config: Config, seeds: int, folder: Path) -> list[Pair]:
    if seeds < 1:
        raise ConfigError(f"the number of seeds must be at least 1, not {seeds}")
    if config.settings.share == "none":
        raise ConfigError(
            f"method {config.method!r} with share = 'none' shares nothing, so no client can "
            "benefit; choose a method that shares"
        )
    if config.sweep:
        raise ConfigError("benefit takes one setting at a time; leave [sweep] out")
    every = range(config.seed, config.seed + seeds)
    return [(_trial(_joined(config, s), folder), _trial(_alone(config, s), folder)) for s in every]


def _trial(config: Config, folder: Path) -> Trial:
    place = folder / run_name(config.method, config.seed, {})
    return Trial(Entry(config.method, {}), config, place, is_finished(config, place))


def _joined(config: Config, seed: int) -> Config:
    return config.variant(config.method, seed)


def _alone(config: Config, seed: int) -> Config:
    """The same settings without sharing, those that the method fixes included."""
    plain = config.variant(LOCAL, seed)
    wanted, own = _values(config.settings.alone()), _values(plain.settings)
    changed = {k: v for k, v in wanted.items() if v != own[k] and k not in ("seed", "share")}
    return config.variant(LOCAL, seed, keyed(changed))


def _values(settings: Any) -> Mapping[str, Any]:
    """Settings as a config writes them: TOML has no null."""
    return {k: "none" if value is None else value for k, value in asdict(settings).items()}


def _benefit(pair: Pair, data: LoadedData, by: By) -> Benefit:
    network, clients, *_ = build(pair[0].config, data.clients)
    joined, alone = (load(trial.folder, network) for trial in pair)
    return joined.benefit(alone, clients, by=by)
