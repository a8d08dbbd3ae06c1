"""Signals and presses: what a Ctrl-C sends, and what becomes of processes at work."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest

from fedgradnorm._training import interrupt
from fedgradnorm._training.interrupt import deferred_interrupt, one_press
from fedgradnorm.experiments import _compare as jobs


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved by hand."""
    now = [100.0]
    monkeypatch.setattr(interrupt, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_an_echo_is_no_second_press(clock: list[float]) -> None:
    with deferred_interrupt() as let_through:
        press()
        clock[0] += 0.9 * interrupt.ONE_PRESS
        press()
        with pytest.raises(KeyboardInterrupt):
            let_through()
        clock[0] += interrupt.ONE_PRESS
        with pytest.raises(KeyboardInterrupt):
            press()


def test_an_echo_may_come_when_nothing_is_deferred_any_more(clock: list[float]) -> None:
    with one_press():
        with deferred_interrupt() as let_through:
            press()
            with pytest.raises(KeyboardInterrupt):
                let_through()
        press()
        clock[0] += interrupt.ONE_PRESS
        with pytest.raises(KeyboardInterrupt):
            press()
        press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handlers_of_others_are_left_alone() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with one_press(), deferred_interrupt() as let_through:
            press()
            let_through()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


@pytest.mark.parametrize("after", [0.0, 0.1, 0.5])
def test_a_second_press_ends_the_processes(monkeypatch: pytest.MonkeyPatch, after: float) -> None:
    """Whether they are about to start or at work: no future stays open, no thread fails."""
    monkeypatch.setattr(interrupt, "ONE_PRESS", 0.0)
    context = multiprocessing.get_context("spawn")
    pool, stop = ProcessPoolExecutor(2, context), context.Event()
    work = [pool.submit(time.sleep, 600) for _ in range(5)]
    main = threading.main_thread().ident
    assert main is not None

    def press_again() -> None:
        assert stop.wait(60)
        time.sleep(after)
        assert not any(future.done() and not future.cancelled() for future in work)
        signal.pthread_kill(main, signal.SIGINT)

    def follow() -> None:
        with jobs._closing(pool, stop) as let_through:
            press()
            let_through()

    insisting = threading.Thread(target=press_again)
    insisting.start()
    with pytest.raises(KeyboardInterrupt):
        follow()
    insisting.join()
    assert isinstance(work[0].exception(), BrokenProcessPool)
    assert all(future.done() for future in work)
    assert not multiprocessing.active_children()
