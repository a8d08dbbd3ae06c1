"""A config trained together and alone, from one seed or several, and the benefit of each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgradnorm._benefit.benefit import HEADS, Benefit, over_seeds, validation_gains
from fedgradnorm._benefit.measuring import By, testable
from fedgradnorm._errors import ConfigError, TrainingError
from fedgradnorm._methods import LOCAL
from fedgradnorm._round.settings import keyed
from fedgradnorm._runs.loading import load
from fedgradnorm._training.benefit import JOINED, STAGE, TRIED, check_heads, warn_of_overfitting
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
from fedgradnorm.experiments._execute import output_folder
from fedgradnorm.experiments._variants import Entry


def benefit(
    config: Config,
    seeds: int = 1,
    *,
    folder: str | Path | None = None,
    by: By = "score",
    try_heads: bool = False,
    jobs: int = 1,
    watch: Watch | None = None,
    data_progress: DataProgress | None = None,
) -> Benefit:
    """Train the config's method, and each client alone, from each seed; the mean over seeds.

    The runs are in ``<output>/<name>-benefit`` unless ``folder`` says otherwise: the method's and
    ``local``'s. Called again, it keeps what is finished and resumes what is not. With ``try_heads``
    there is a run for each kind of heads, and validation picks one kind for all seeds.
    """
    place = benefit_folder(config) if folder is None else Path(folder)
    heads = {name: HEADS[name] for name in TRIED} if try_heads else {JOINED: {}}
    of_seed = _trials(config, seeds, place, heads)
    trials = [trial for found in of_seed for trial in found.values()]
    for trial in trials:
        check(trial.config)
    data = DataOf(data_progress)
    given = testable(data(trials[0].config).clients, by)
    if try_heads:
        check_heads(given, build(config, data(trials[0].config).clients)[2], config.settings)
    warn_of_overfitting(given, config.settings)
    if failures := run_trials(trials, jobs, watch, data):
        raise TrainingError(f"{len(failures)} of {len(trials)} runs failed: {failures[0]}")
    benefits: dict[str, list[Benefit]] = {name: [] for name in heads}
    tried = list[dict[str, float]]()
    for found in of_seed:
        network, clients, *_ = build(found[STAGE].config, data(found[STAGE].config).clients)
        runs = {name: load(trial.folder, network) for name, trial in found.items()}
        alone = runs.pop(STAGE)
        for name, run in runs.items():
            benefits[name].append(run.benefit(alone, clients, by=by))
        if try_heads:
            tried.append(validation_gains(runs, alone, testable(clients, by)))
    means = {name: fmean(one[name] for one in tried) for name in HEADS} if try_heads else {}
    each = benefits[max(means, key=means.__getitem__, default=JOINED)]
    return replace(each[0] if seeds == 1 else over_seeds(each), tried=means)


def benefit_folder(config: Config) -> Path:
    return output_folder(config) / f"{config.name}-benefit"


def variant_name(config: Config, benefit: Benefit) -> str:
    """What the run that was compared with training alone is called in tables."""
    return _entry(config, HEADS.get(benefit.heads, {})).label


def _entry(config: Config, heads: Mapping[str, Any]) -> Entry:
    return Entry(config.method, dict(sorted(keyed(heads).items())))


def _trials(
    config: Config, seeds: int, folder: Path, heads: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Trial]]:
    """A seed's runs: one for each kind of heads, then the one without sharing."""
    if seeds < 1:
        raise ConfigError(f"the number of seeds must be at least 1, not {seeds}")
    if config.settings.share == "none":
        raise ConfigError(
            f"method {config.method!r} with share = 'none' shares nothing, so no client can "
            "benefit; choose a method that shares"
        )
    if config.sweep:
        raise ConfigError("benefit takes one setting at a time; leave [sweep] out")

    def trial(entry: Entry, wanted: Config) -> Trial:
        place = folder / run_name(entry.label, wanted.seed, {})
        return Trial(entry, wanted, place, is_finished(wanted, place))

    found = list[dict[str, Trial]]()
    for seed in range(config.seed, config.seed + seeds):
        entries = {name: _entry(config, how) for name, how in heads.items()}
        runs = {
            name: trial(entry, config.variant(config.method, seed, own=entry.own))
            for name, entry in entries.items()
        }
        found.append({**runs, STAGE: trial(Entry(LOCAL, {}), _alone(config, seed))})
    return found


def _alone(config: Config, seed: int) -> Config:
    """The same settings without sharing, those that the method fixes included."""
    plain = config.variant(LOCAL, seed)
    wanted, own = _values(config.settings.alone()), _values(plain.settings)
    changed = {k: v for k, v in wanted.items() if v != own[k] and k not in ("seed", "share")}
    return config.variant(LOCAL, seed, keyed(changed))


def _values(settings: Any) -> Mapping[str, Any]:
    """Settings as a config writes them: TOML has no null."""
    return {k: "none" if value is None else value for k, value in asdict(settings).items()}
