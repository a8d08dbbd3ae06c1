"""Signals and presses: what a Ctrl-C sends."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from fedgradnorm._training import interrupt
from fedgradnorm._training.interrupt import deferred_interrupt, one_press


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
