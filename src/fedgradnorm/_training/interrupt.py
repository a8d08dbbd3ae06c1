"""Ctrl-C waits for the end of a round: one cut in half could not be resumed exactly."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ONE_PRESS = 1.0
"""Seconds within which signals are one Ctrl-C: what starts a program may pass on to it what its
whole group is sent as well (`timeout -s INT` does)."""


class Press:
    """Python's own handler, but for the echoes of a Ctrl-C."""

    def __init__(self) -> None:
        self.since = -math.inf

    def __call__(self, *_: object) -> None:
        """Raise KeyboardInterrupt, unless this is an echo."""
        if self.is_new():
            raise KeyboardInterrupt

    def is_new(self) -> bool:
        """Whether a signal that has just come is a press of its own."""
        now = time.monotonic()
        if now - self.since < ONE_PRESS:
            return False
        self.since = now
        return True


@contextmanager
def one_press() -> Iterator[None]:
    """A Ctrl-C interrupts once, however many signals it sends."""
    with _handling(Press()):
        yield


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def deferred_interrupt(again: Callable[[], None] = _interrupt) -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C until the function it yields is called. A second one calls ``again`` at once."""
    before = signal.getsignal(signal.SIGINT)
    press = before if isinstance(before, Press) else Press()
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if not press.is_new():
            return
        if asked:
            again()
        asked = True

    def let_through() -> None:
        if asked:
            raise KeyboardInterrupt

    with _handling(ask):
        yield let_through


@contextmanager
def _handling(handler: Callable[..., None]) -> Iterator[None]:
    """Have a handler for Ctrl-C, in the main thread and where nobody else has one."""
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler or isinstance(before, Press)
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
