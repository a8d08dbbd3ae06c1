"""Several runs as they are trained, on stderr: a line for each that has finished."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedgradnorm._cli.output import err

if TYPE_CHECKING:
    from fedgradnorm.experiments._compare import News, Watch

PLAIN_SECONDS = 30.0


@contextmanager
def showing_runs() -> Iterator[Watch]:
    """What a comparison tells its news to.

    A line stays of every run that has finished. Below it, a terminal shows the runs under way, each
    with a bar; elsewhere a line says every half minute how far they are.
    """
    board = Board()
    if not err.is_terminal:
        yield board.lines
        return
    with Live(get_renderable=board.render, console=err, refresh_per_second=4, transient=True):
        yield board.ended


class Board:
    """The runs under way, and how many are over."""

    def __init__(self) -> None:
        self.running: dict[str, News] = {}
        self.over = 0
        self.count = 0
        self.began = time.monotonic()
        self.said = time.monotonic()

    def show(self, news: Sequence[News]) -> None:
        for item in news:
            self.count = item.count or self.count
            if item.done:
                self.over += 1
                self.running.pop(item.trial.title, None)
            else:
                self.running[item.trial.title] = item

    def render(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        for title, item in list(self.running.items()):
            if item.event is not None:
                bar = ProgressBar(item.event.rounds, item.event.round, width=24)
                count = f"round {item.event.round}/{item.event.rounds}"
                grid.add_row(Text(title), bar, count)
        grid.add_row(
            Text(self.left() if self.running or self.over else "starting ...", style="dim")
        )
        return grid

    def left(self) -> str:
        """How many of all runs are done, and about how long the rest takes."""
        events = [item.event for item in list(self.running.values()) if item.event is not None]
        done = self.over + sum(event.round / event.rounds for event in events)
        text = f"{self.over} of {self.count} runs done" if self.count else f"{self.over} runs done"
        if not self.count or done < 0.02 or self.over >= self.count:
            return text
        seconds = (time.monotonic() - self.began) * (self.count - done) / done
        minutes, rest = divmod(round(seconds), 60)
        about = f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
        return f"{text} ({100 * done / self.count:.0f} %), about {about} left"

    def ended(self, news: Sequence[News]) -> None:
        """Take what is new, and print a line for each run that has ended."""
        self.show(news)
        for item in news:
            if item.done:
                how = f"failed: {item.failed}" if item.failed else "done"
                self._say(f"{item.trial.title}: {how}; {self.left()}")

    def lines(self, news: Sequence[News]) -> None:
        """The same, and now and then a line about the runs under way."""
        self.ended(news)
        if self.running and time.monotonic() - self.said >= PLAIN_SECONDS:
            parts = [
                f"{title} {100 * item.event.round // item.event.rounds}%"
                for title, item in self.running.items()
                if item.event is not None
            ]
            self._say(f"under way: {', '.join(parts)}; {self.left()}")

    def _say(self, line: str) -> None:
        self.said = time.monotonic()
        err.print(line, markup=False, highlight=False, soft_wrap=True)
