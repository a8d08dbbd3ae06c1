"""Several methods from several seeds on the same data: ordinary runs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedgradnorm._errors import TrainingError
from fedgradnorm._training.inputs import usable_device
from fedgradnorm.data._sources import DataProgress
from fedgradnorm.experiments._config.config_file import Config, check
from fedgradnorm.experiments._entries import FROZEN_FROM, read_entries
from fedgradnorm.experiments._execute import LoadedData, execute, load_data, output_folder
from fedgradnorm.experiments._jobs import Watch, run_in_parallel, watched
from fedgradnorm.experiments._trials import Trial, plan


def compare(
    config: Config,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    *,
    folder: str | Path | None = None,
    jobs: int = 1,
    watch: Watch | None = None,
    data_progress: DataProgress | None = None,
) -> list[Path]:
    """Train each method from each seed at each point of the sweep; return the folders by method.

    ``methods`` and ``seeds`` default to those of the config's ``[compare]``; a method's name can be
    followed by its own settings (``"fedgradnorm weighting.lr=0.008"``). The runs are saved in
    ``<output>/<name>-compare`` unless ``folder`` says otherwise. Called again, it keeps finished
    runs, resumes unfinished ones and starts the rest. All methods of a seed get the same data, the
    same initial network and heads, and the same batches. With ``jobs`` > 1, that many processes
    share the runs. ``watch`` is called with their progress. Failed training is an error once all
    other runs are done.
    """
    methods = config.compare.methods if methods is None else methods
    seeds = config.compare.seeds if seeds is None else seeds
    place = compare_folder(config) if folder is None else Path(folder)
    entries = read_entries(methods, seeds, swept=bool(config.sweep))
    for entry in entries:
        if entry.needs_a_run:  # it is planned last: what is wrong with it is said first
            config.variant(FROZEN_FROM, config.seed, entry.own)
    found: list[Trial] = []
    failures: list[str] = []
    # Methods that start from a run of another one come after it.
    for frozen in (False, True):
        wave = [entry for entry in entries if entry.needs_a_run == frozen]
        if not wave or (frozen and failures):
            continue
        trials = plan(config, wave, seeds, place)
        waiting = [trial for trial in trials if not trial.finished]
        for trial in waiting:
            check(trial.config)  # what is wrong with the last is said before the first begins
        if jobs > 1 and len(waiting) > 1:
            load_data(waiting[0].config, data_progress)  # fills the cache, or fails, just once
            failures += run_in_parallel(waiting, jobs, watch)
        else:
            failures += _run_in_turn(waiting, watch, data_progress)
        found += trials
    if failures:
        raise TrainingError(
            f"{len(failures)} of {len(found)} runs failed (the others are done): {failures[0]}"
        )
    return [t.folder for t in sorted(found, key=lambda trial: entries.index(trial.entry))]


def compare_folder(config: Config) -> Path:
    """Where the runs of a comparison lie."""
    return output_folder(config) / f"{config.name}-compare"


def _run_in_turn(
    trials: Sequence[Trial], watch: Watch | None, data_progress: DataProgress | None
) -> list[str]:
    """Run them one by one, loading data once where it is the same; what failed, in words."""
    for trial in trials:  # the first run decides which instructions all of them can have
        usable_device(trial.config.settings)
    failures: list[str] = []
    data: LoadedData | None = None
    loaded: object = None
    for trial in trials:
        wanted = (trial.config.seed, trial.config.data, trial.config.privacy)
        if data is None or loaded != wanted:
            data, loaded = load_data(trial.config, data_progress), wanted
        try:
            with watched(trial, len(trials), watch) as show:
                execute(trial.config, trial.folder, resume=True, progress=show, data=data)
        except TrainingError as error:
            failures.append(f"{trial.title}: {error}")
    return failures
