"""Runs of a comparison in several processes; Ctrl-C stops them all at the end of a round."""

from __future__ import annotations

import logging
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

from fedgradnorm._errors import Interrupted, TrainingError
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.interrupt import deferred_interrupt
from fedgradnorm.experiments._execute import execute
from fedgradnorm.experiments._trials import Trial

log = logging.getLogger("fedgradnorm")

EVERY = 0.5
"""Seconds between two looks at the processes, and at least between two messages of one."""

_SAFE = "PYTHONSAFEPATH"


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


def run_in_parallel(trials: Sequence[Trial], jobs: int, watch: Watch | None = None) -> list[str]:
    """Run the trials, ``jobs`` at a time, each in a process of its own; what failed, in words."""
    with _no_modules_from_here():
        return _in_processes(trials, jobs, watch)


def _in_processes(trials: Sequence[Trial], jobs: int, watch: Watch | None) -> list[str]:
    context = multiprocessing.get_context("spawn")
    stop, events = context.Event(), context.Queue()
    jobs = min(jobs, len(trials))
    pool = ProcessPoolExecutor(jobs, context, _begin, (stop, events, _threads(jobs)))
    futures: dict[Future[str], Trial] = {}
    try:
        with _closing(pool, stop) as let_through:
            with _interrupts_ignored():  # the processes start here, and inherit it
                for number, trial in enumerate(trials):
                    table, allow = trial.config.table(), trial.config.allowed
                    job = pool.submit(_run, number, table, allow, trial.folder)
                    futures[job] = trial
            return _follow(futures, trials, events, watch, let_through)
    except KeyboardInterrupt:
        done = sum(not f.cancelled() and f.exception() is None for f in futures)
        raise KeyboardInterrupt(f"stopped with {done} of {len(trials)} runs done") from None
    except BrokenProcessPool:
        raise TrainingError(
            "a process was killed, perhaps because memory ran out; use fewer jobs and call again: "
            "what is finished is kept"
        ) from None
    finally:
        events.close()


@contextmanager
def _closing(pool: ProcessPoolExecutor, stop: Any) -> Iterator[Callable[[], None]]:
    """Leave no process behind and lose no Ctrl-C; the function it gives lets one through."""
    with deferred_interrupt(_end_processes) as let_through:
        try:
            yield let_through
        except BaseException:
            stop.set()
            log.warning(
                "stopping at the end of a round; Ctrl-C again goes back to the last checkpoints"
            )
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            let_through()  # what was pressed at the end, or beside another error


def _end_processes() -> None:
    """What a second Ctrl-C does: the pool sees its processes die and is over.

    An exception instead would interrupt the pool in joining its thread, which then counts as
    ended (until Python 3.13), and what it still uses would be taken away from it.
    """
    for process in multiprocessing.active_children():
        process.terminate()


def _follow(
    futures: dict[Future[str], Trial],
    trials: Sequence[Trial],
    events: Any,
    watch: Watch | None,
    let_through: Callable[[], None],
) -> list[str]:
    """Wait for the end of all, passing on what is heard of them, and Ctrl-C."""
    waiting, failures = set(futures), list[str]()
    while waiting:
        over, waiting = wait(waiting, timeout=EVERY)
        news = [News(trials[n], event, count=len(trials)) for n, event in _heard(events)]
        for future in over:
            failed = future.result()
            news.append(News(futures[future], None, True, failed, len(trials)))
            if failed:
                failures.append(f"{futures[future].title}: {failed}")
        if watch is not None and news:
            watch(news)
        let_through()
    return failures


def _heard(events: Any) -> Iterator[tuple[int, Progress]]:
    while not events.empty():
        yield events.get()


_shared: dict[str, Any] = {}
"""What a worker process was begun with."""


def _begin(stop: Any, events: Any, threads: int) -> None:
    """Set up a worker process: Ctrl-C is for the parent, which says when to stop."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    _shared.update(stop=stop, events=events)
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
        if _shared["stop"].is_set():
            raise KeyboardInterrupt
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            _shared["events"].put((number, replace(event, rows=())))

    if _shared["stop"].is_set():
        raise RuntimeError("stopped before it began")
    try:
        execute(make_config(table, allow=allow), folder, resume=True, progress=tell)
    except TrainingError as error:
        return str(error)
    except Interrupted:
        raise RuntimeError("stopped") from None  # a KeyboardInterrupt would end the process
    return ""


def _threads(jobs: int) -> int:
    """Cores for each of so many processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // jobs)


@contextmanager
def _no_modules_from_here() -> Iterator[None]:
    """New processes import nothing from the working folder: it may be somebody else's runs."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE]
        else:
            os.environ[_SAFE] = before


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
