"""Several methods from several seeds on the same data: ordinary runs, side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedgradnorm._checks import shortened
from fedgradnorm._errors import ConfigError, RunFolderError, TrainingError
from fedgradnorm._runs.files import present
from fedgradnorm._runs.layout import CONFIG, MANIFEST
from fedgradnorm._runs.manifest import difference, read_manifest
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.inputs import usable_device
from fedgradnorm.data._sources import DataProgress
from fedgradnorm.experiments._config.config_file import Config, check
from fedgradnorm.experiments._execute import (
    LoadedData,
    execute,
    load_data,
    output_folder,
    resume_config,
)
from fedgradnorm.experiments._variants import (
    FROZEN_FROM,
    Entry,
    Point,
    felt_by,
    file_name,
    point_name,
    points,
    read_entries,
)

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
    trials: dict[Path, Trial] = {}
    for seed in range(config.seed, config.seed + seeds):
        for point in points(config.sweep):
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


def _essence(config: Config) -> dict[str, Any]:
    """What decides the numbers of a run."""
    return {k: v for k, v in config.table().items() if k not in _NAMES}


EVERY = 0.5
"""Seconds between two looks at the processes, and at least between two messages of one."""


@dataclass(frozen=True)
class News:
    """What is known of a run: its last round, or that it is over (``failed`` says how).

    ``count`` is the number of all runs that were begun with it.
    """

    trial: Trial
    event: Progress | None = None
    done: bool = False
    failed: str = ""
    count: int = 0


Watch = Callable[[Sequence[News]], None]
"""Called now and then with what is new."""


@contextmanager
def watched(trial: Trial, count: int, watch: Watch | None) -> Iterator[Callable[[Progress], None]]:
    """Tell ``watch`` of a run in this process: its rounds, and its end."""
    tell = watch or (lambda _: None)

    def show(event: Progress) -> None:
        tell([News(trial, event, count=count)])

    try:
        yield show
    except TrainingError as error:
        tell([News(trial, None, True, str(error), count)])
        raise
    tell([News(trial, None, True, "", count)])


def run_trials(trials: Sequence[Trial], jobs: int, watch: Watch | None, data: DataOf) -> list[str]:
    """Run the trials that are not finished, ``jobs`` at a time; what failed, in words."""
    waiting = [trial for trial in trials if not trial.finished]
    for trial in waiting:  # what is wrong with the last is said before the first begins
        check(trial.config)
    if jobs > 1 and len(waiting) > 1:
        data(waiting[0].config)  # fills the cache, or fails, just once
        with _no_modules_from_here():
            return _in_processes(waiting, jobs, watch)
    for trial in waiting:  # the first run decides which instructions all of them can have
        usable_device(trial.config.settings)
    failures: list[str] = []
    for trial in waiting:
        loaded = data(trial.config)
        try:
            with watched(trial, len(waiting), watch) as show:
                execute(trial.config, trial.folder, resume=True, progress=show, data=loaded)
        except TrainingError as error:
            failures.append(f"{trial.title}: {error}")
    return failures


class DataOf:
    """The data of configs; that of the last one is not loaded again."""

    def __init__(self, progress: DataProgress | None = None) -> None:
        self._progress, self._wanted = progress, dict[str, Any]()
        self._data: LoadedData | None = None

    def __call__(self, config: Config) -> LoadedData:
        wanted = {"seed": config.seed, "data": config.data, "privacy": config.privacy}
        if self._data is None or self._wanted != wanted:
            self._data, self._wanted = load_data(config, self._progress), wanted
        return self._data


def _in_processes(trials: Sequence[Trial], jobs: int, watch: Watch | None) -> list[str]:
    context = multiprocessing.get_context("spawn")
    events, jobs = context.Queue(), min(jobs, len(trials))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pool = ProcessPoolExecutor(jobs, context, _begin, (events, max(1, (cores or 1) // jobs)))
    futures: dict[Future[str], Trial] = {}
    try:
        with _interrupts_ignored():  # the processes start here, and inherit it
            for number, trial in enumerate(trials):
                table, allow = trial.config.table(), trial.config.allowed
                futures[pool.submit(_run, number, table, allow, trial.folder)] = trial
        return _follow(futures, trials, events, watch)
    except KeyboardInterrupt:
        done = sum(future.done() for future in futures)
        for process in multiprocessing.active_children():
            process.terminate()  # a run goes back to its last checkpoint
        raise KeyboardInterrupt(f"stopped with {done} of {len(trials)} runs done") from None
    except BrokenProcessPool:
        raise TrainingError(
            "a process was killed, perhaps because memory ran out; use fewer jobs and call again: "
            "what is finished is kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        events.close()


def _follow(
    futures: dict[Future[str], Trial], trials: Sequence[Trial], events: Any, watch: Watch | None
) -> list[str]:
    """Wait for the end of all, passing on what is heard of them."""
    waiting, failures = set(futures), list[str]()
    while waiting:
        over, waiting = wait(waiting, timeout=EVERY)
        news = list[News]()
        while not events.empty():
            number, event = events.get()
            news.append(News(trials[number], event, count=len(trials)))
        for future in over:
            failed = future.result()
            news.append(News(futures[future], None, True, failed, len(trials)))
            if failed:
                failures.append(f"{futures[future].title}: {failed}")
        if watch is not None and news:
            watch(news)
    return failures


_events: list[Any] = []
"""Where a worker process tells what it does."""


def _begin(events: Any, threads: int) -> None:
    """Set up a worker process: Ctrl-C is for the parent, which ends it."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    _events.append(events)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is killed: nobody else would ever stop it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # as if it had been killed too: the runs can be resumed


def _run(number: int, table: dict[str, Any], allow: Sequence[str], folder: Path) -> str:
    """One trial in a worker process; how training failed, if it did."""
    from fedgradnorm.experiments._config.config_file import make_config

    said = 0.0

    def tell(event: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            _events[0].put((number, replace(event, rows=())))

    try:
        execute(make_config(table, allow=allow), folder, resume=True, progress=tell)
    except TrainingError as error:
        return str(error)
    return ""


@contextmanager
def _no_modules_from_here() -> Iterator[None]:
    """New processes import nothing from the working folder: it may be somebody else's runs."""
    before = dict(os.environ)
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if "PYTHONSAFEPATH" not in before:
            del os.environ["PYTHONSAFEPATH"]


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
    data, found, failures = DataOf(data_progress), list[Trial](), list[str]()
    # Methods that start from a run of another one come after it.
    for frozen in (False, True):
        wave = [entry for entry in entries if entry.needs_a_run == frozen]
        if wave and not (frozen and failures):
            trials = plan(config, wave, seeds, place)
            failures += run_trials(trials, jobs, watch, data)
            found += trials
    if failures:
        raise TrainingError(
            f"{len(failures)} of {len(found)} runs failed (the others are done): {failures[0]}"
        )
    return [t.folder for t in sorted(found, key=lambda trial: entries.index(trial.entry))]


def compare_folder(config: Config) -> Path:
    return output_folder(config) / f"{config.name}-compare"
