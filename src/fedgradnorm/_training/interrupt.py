"""Ctrl-C waits for the end of a round: one cut in half could not be resumed exactly."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

ONE_PRESS = 1.0
"""Seconds within which signals are one Ctrl-C: what starts a program may pass on to it what its
whole group is sent as well (`timeout -s INT` does)."""


class _Handler:
    """Calls ``pressed`` for a Ctrl-C, but not for its echoes, whichever handler had the first."""

    last = -math.inf

    def __init__(self, pressed: Callable[[], None]) -> None:
        self.pressed = pressed

    def __call__(self, *_: object) -> None:
        now = time.monotonic()
        if now - _Handler.last >= ONE_PRESS:
            _Handler.last = now
            self.pressed()


@contextmanager
def _handling(pressed: Callable[[], None]) -> Iterator[None]:
    """Handle Ctrl-C in the main thread, where it has Python's own handler or `one_press`."""
    before = signal.getsignal(signal.SIGINT)
    default = before is signal.default_int_handler
    ours = default or (isinstance(before, _Handler) and before.pressed is _interrupt)
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    if default:
        _Handler.last = -math.inf
    signal.signal(signal.SIGINT, _Handler(pressed))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt() -> None:
    raise KeyboardInterrupt


def one_press() -> AbstractContextManager[None]:
    """A Ctrl-C interrupts once, however many signals it sends."""
    return _handling(_interrupt)


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C until the function it yields is called; a second one interrupts at once."""
    presses = 0

    def press() -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt

    def let_through() -> None:
        if presses:
            raise KeyboardInterrupt

    with _handling(press):
        yield let_through
