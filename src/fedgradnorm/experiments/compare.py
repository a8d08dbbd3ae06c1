"""Several methods from several seeds on the same data: ordinary runs, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from fedgradnorm.data.sources import DataProgress
from fedgradnorm.errors import ConfigError, RunFolderError
from fedgradnorm.experiments.config import Config
from fedgradnorm.experiments.execute import (
    CONFIG,
    LoadedData,
    Show,
    execute,
    load_data,
    resume_config,
)
from fedgradnorm.experiments.run import ABOUT, read_about


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: what it is, where it is, and whether it was there already."""

    config: Config
    folder: Path
    finished: bool

    @property
    def title(self) -> str:
        """The method and the seed."""
        return f"{self.config.method} seed {self.config.seed}"


Display = Callable[[Trial, int, int], AbstractContextManager[Show]]
"""(trial, number, of how many) -> a context that gives what ``train`` takes as progress."""


def plan(config: Config, methods: Sequence[str], seeds: int, folder: Path) -> list[Trial]:
    """Every run of the comparison, checked before any of them starts, seed by seed."""
    if not methods:
        raise ConfigError("no methods to compare: name at least one, for example fedrep")
    if seeds < 1:
        raise ConfigError(f"the number of seeds must be at least 1, not {seeds}")
    twice = next((name for name in methods if methods.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"method {twice!r} is named twice; name each once")
    wanted = [
        config.variant(method, seed)
        for seed in range(config.seed, config.seed + seeds)
        for method in methods
    ]
    return [_trial(one, folder / f"{one.method}-seed{one.seed}") for one in wanted]


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: int = 1,
    *,
    folder: str | Path | None = None,
    display: Display | None = None,
    data_progress: DataProgress | None = None,
) -> list[Path]:
    """Train each method from each seed; the run folders, method by method.

    They lie in ``<output>/<name>-compare`` unless ``folder`` says otherwise. Called again, it
    keeps what is finished, resumes what is not, and starts the rest. All methods of a seed get the
    same data, the same start of the shared network and heads, and the same batches.
    """
    place = compare_folder(config) if folder is None else Path(folder)
    trials = plan(config, methods, seeds, place)
    open_trials = [trial for trial in trials if not trial.finished]
    data: LoadedData | None = None
    loaded_seed = -1
    for number, trial in enumerate(open_trials, start=1):
        seed = trial.config.seed
        if data is None or loaded_seed != seed:
            data, loaded_seed = load_data(trial.config, data_progress), seed
        shown = display(trial, number, len(open_trials)) if display else nullcontext(False)
        with shown as show:
            execute(trial.config, trial.folder, resume=True, progress=show, data=data)
    order = {method: i for i, method in enumerate(methods)}
    return [t.folder for t in sorted(trials, key=lambda trial: order[trial.config.method])]


def compare_folder(config: Config) -> Path:
    """Where the runs of a comparison lie."""
    return Path(config.output.folder).expanduser() / f"{config.name}-compare"


def _trial(config: Config, folder: Path) -> Trial:
    if not (folder / CONFIG).exists():
        return Trial(config, folder, finished=False)
    if _essence(resume_config(folder)) != _essence(config):
        raise RunFolderError(
            f"{folder} holds a run of another config; remove it, or choose another name or "
            "output.folder"
        )
    finished = (folder / ABOUT).exists() and bool(read_about(folder)["finished"])
    return Trial(config, folder, finished)


def _essence(config: Config) -> dict[str, object]:
    """What decides the numbers of a run."""
    return {k: v for k, v in config.table().items() if k not in ("name", "output")}
