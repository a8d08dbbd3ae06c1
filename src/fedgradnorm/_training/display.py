"""Training as it happens, in a terminal: round, epoch, time left, loss and weight per client."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedgradnorm._runs.many.spread import MANY, quantiles
from fedgradnorm._training.callbacks import Progress

PER_SECOND = 8
PLAIN_SECONDS = 5.0
MOST_CLIENTS = 20  # that are shown one by one, of those seen so far


@contextmanager
def live_display(
    start_round: int | None = None,
    title: str = "training",
    console: Console | None = None,
    beside: Callable[[Progress], str] | None = None,
) -> Iterator[Callable[[Progress], None]]:
    """A display on stderr; call what it yields after each round.

    In a terminal it is drawn in place, at most eight times a second; elsewhere a plain line is
    printed every five seconds and at the end. ``start_round`` is where a resumed run goes on.
    ``beside`` says what else there is to know after an event, such as how many runs are left.
    """
    console = console or Console(stderr=True)
    view = _View(title, start_round, beside)
    if not console.is_terminal:
        yield _Lines(view, console)
        return
    with Live(get_renderable=view.render, console=console, refresh_per_second=PER_SECOND):
        yield view.show


class _View:
    """The latest event and what follows from it and the clock."""

    def __init__(
        self,
        title: str,
        start_round: int | None,
        beside: Callable[[Progress], str] | None = None,
    ) -> None:
        self.title, self.start_round, self.beside = title, start_round, beside
        self.began = time.monotonic()
        self.event: Progress | None = None
        self.stage = ""
        # A client that sits out a round keeps the loss it last reported.
        self.losses: dict[str, float] = {}
        self.weights: dict[str, float] = {}

    def show(self, event: Progress) -> None:
        """Take an event; drawing is left to the display's own clock."""
        if event.stage != self.stage and not event.ended:  # its rounds are counted anew
            self.stage, self.start_round, self.began = event.stage, None, time.monotonic()
            self.losses, self.weights = {}, {}
        if self.start_round is None:
            self.start_round = event.round - 1
        self.event = event
        self.losses.update(event.losses)
        self.weights.update(event.weights)

    @property
    def named(self) -> str:
        """The title, and what part of the run this is, where it has parts."""
        over = self.event is not None and self.event.ended
        return f"{self.title} ({self.stage})" if self.stage and not over else self.title

    def left(self) -> str:
        """Time to go, from the pace since the start."""
        event = self.event
        if event is None or self.start_round is None or event.round <= self.start_round:
            return "?"
        if event.ended:
            return clock(0)
        pace = (time.monotonic() - self.began) / (event.round - self.start_round)
        return clock(pace * (event.rounds - event.round))

    def render(self) -> RenderableType:
        """The bar and the table of clients."""
        event = self.event
        if event is None:
            return Text(f"{self.title}: first evaluation ...")
        line = Table.grid(padding=(0, 2))
        line.add_row(
            Text(self.named, style="bold"),
            ProgressBar(event.rounds, event.round, width=24),
            f"round {event.round}/{event.rounds}",
            f"epoch {event.epoch:.1f}",
            f"{self.left()} left",
        )
        table = Table(box=None, padding=(0, 2))
        table.add_column("client")
        for name in (event.shown, "weight"):
            table.add_column(name, justify="right")
        for name, loss, weight in self.shown():
            table.add_row(Text(name), f"{loss:.4g}", f"{weight:.3f}")
        ended = [Text(f"{self.title}: {event.ended}")] if event.ended else []
        beside = [Text(self.beside(event), style="dim")] if self.beside else []
        return Group(line, table, *ended, *beside)

    def shown(self) -> list[tuple[str, float, float]]:
        """Clients with loss and weight; of many the least, the median and the largest loss.

        Of more than ``MANY`` no client is named: there are quantiles of losses and of weights.
        """
        # The table is copied first: this runs in the display's thread.
        rows = [(name, loss, self.weights.get(name, 1.0)) for name, loss in [*self.losses.items()]]
        if len(rows) <= MOST_CLIENTS:
            return rows
        if len(rows) > MANY:
            return _distribution(rows)
        ranked = sorted(rows, key=lambda row: row[1])
        picked = {"least": ranked[0], "median": ranked[len(rows) // 2], "largest": ranked[-1]}
        return [(f"{what} of {len(rows)}: {row[0]}", *row[1:]) for what, row in picked.items()]

    def line(self) -> str:
        """The same on one plain line."""
        event = self.event
        assert event is not None
        clients = ", ".join(
            f"{name} {loss:.4g} (x{weight:.3f})" for name, loss, weight in self.shown()
        )
        return (
            f"{self.named}: round {event.round}/{event.rounds}, epoch {event.epoch:.1f}, "
            f"{self.left()} left; {event.shown} (x weight): {clients}"
            + (f"; {event.ended}" if event.ended else "")
            + (f"; {self.beside(event)}" if self.beside else "")
        )


def _distribution(rows: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Quantiles of the losses, the worst last, each beside the same quantile of the weights."""
    losses, weights = (
        quantiles([value for value in column if math.isfinite(value)] or [math.nan])
        for column in ([loss for _, loss, _ in rows], [weight for _, _, weight in rows])
    )
    named = {"p10": "10 %", "median": "median", "p90": "90 %", "max": "largest"}
    first, *rest = [(word, losses[key], weights[key]) for key, word in named.items()]
    return [(f"{len(rows):,} clients: {first[0]}", *first[1:]), *rest]


class _Lines:
    """Prints a line now and then."""

    def __init__(self, view: _View, console: Console) -> None:
        self.view, self.console = view, console
        self.printed = time.monotonic()

    def __call__(self, event: Progress) -> None:
        self.view.show(event)
        now = time.monotonic()
        if event.ended or event.round >= event.rounds or now - self.printed >= PLAIN_SECONDS:
            self.printed = now
            self.console.print(self.view.line(), markup=False, highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Seconds as 12 s, 3:05 or 1:02:03.

    >>> clock(185)
    '3:05'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
