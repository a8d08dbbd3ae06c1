"""Ctrl-C waits for the end of a round: one cut in half could not be resumed exactly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back; the function it gives lets one through. A second Ctrl-C does not wait."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def let_through() -> None:
        if asked:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler  # leave anyone else's handler alone
    if not ours or threading.current_thread() is not threading.main_thread():
        yield let_through
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, before)
