"""Training as it happens, in a terminal: round, epoch, time left, loss and weight per client."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedgradnorm._runs.spread import quantiles
from fedgradnorm._training.callbacks import Progress
from fedgradnorm.tasks._named_metrics import MAIN_METRICS

PER_SECOND = 8
PLAIN_SECONDS = 5.0
MOST_CLIENTS = 20  # that are shown one by one, of those seen so far
HELD_OUT = ("test", "validation")
BARS, TREND = "▁▂▃▄▅▆▇█", 12  # of a sparkline, which always spans the whole run
SHOWN = {"p10": "10 %", "median": "median", "p90": "90 %", "max": "largest"}


@contextmanager
def live_display(
    start_round: int | None = None, title: str = "training", console: Console | None = None
) -> Iterator[Callable[[Progress], None]]:
    """A display on stderr; call what it yields after each round.

    In a terminal it is drawn in place, at most eight times a second; elsewhere a plain line is
    printed every five seconds and at the end. ``start_round`` is where a resumed run continues.
    """
    console = console or Console(stderr=True)
    view = _View(title, start_round, console)
    if not console.is_terminal:
        yield view.show_in_lines
        return
    with Live(get_renderable=view.render, console=console, refresh_per_second=PER_SECOND):
        yield view.show


class _View:
    """The latest event and what follows from it and the clock."""

    def __init__(self, title: str, start_round: int | None, console: Console) -> None:
        self.title, self.start_round, self.console = title, start_round, console
        self.began = self.printed = time.monotonic()
        self.event: Progress | None = None
        # A client that sits out a round keeps the loss it last reported.
        self.losses: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        self.scores: dict[str, str] = {}
        self.trends: dict[str, dict[int, float]] = {}  # the last finite loss in each bar

    def show(self, event: Progress) -> None:
        """Take an event; drawing is left to the display's own clock."""
        if self.start_round is None:
            self.start_round = event.round - 1
        self.losses.update(event.losses)
        self.weights.update(event.weights)
        if len(self.losses) <= MOST_CLIENTS:
            place = (event.round - 1) * TREND // max(event.rounds, TREND)
            for name, loss in event.losses.items():
                if math.isfinite(loss):
                    self.trends.setdefault(name, {})[place] = loss
            for row in event.rows:
                if row["split"] in HELD_OUT:
                    metric = next((name for name in MAIN_METRICS if name in row), "loss")
                    percent = metric == "accuracy"
                    shown = f"{row[metric]:.1%}" if percent else f"{metric} {row[metric]:.4g}"
                    self.scores[row["client"]] = shown
        self.event = event

    def show_in_lines(self, event: Progress) -> None:
        """Take an event, and print a line now and then."""
        self.show(event)
        now = time.monotonic()
        if event.ended or event.round >= event.rounds or now - self.printed >= PLAIN_SECONDS:
            self.printed = now
            title, *facts = self.facts(event)
            clients = ", ".join(f"{name} {loss:.4g} (x{w:.3f})" for name, loss, w in self.clients())
            shown = f"{title}: {', '.join(facts)}; {event.shown} (x weight): {clients}"
            line = "; ".join(filter(None, (shown, event.ended)))
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def facts(self, event: Progress) -> tuple[str, str, str, str]:
        """Title, round, epoch, and time to go, from the pace since the start."""
        done, left = event.round - (self.start_round or 0), "?"
        if done > 0:
            pace = (time.monotonic() - self.began) / done
            seconds = 0 if event.ended else pace * (event.rounds - event.round)
            left = str(timedelta(seconds=round(seconds)))
        where = f"round {event.round}/{event.rounds}"
        return self.title, where, f"epoch {event.epoch:.1f}", f"{left} left"

    def render(self) -> RenderableType:
        event = self.event
        if event is None:
            return Text(f"{self.title}: first evaluation ...")
        title, *facts = self.facts(event)
        line = Table.grid(padding=(0, 2))
        bar = ProgressBar(event.rounds, event.round, width=24)
        line.add_row(Text(title, style="bold"), bar, *facts)
        table = Table("client", box=None, padding=(0, 2))
        for name in (event.shown, "trend", "held out", "weight"):
            table.add_column(name, justify="left" if name == "trend" else "right")
        for name, loss, weight in self.clients():
            trend = sparkline({**self.trends.get(name, {})})
            row = (Text(name), f"{loss:.4g}", trend, self.scores.get(name, ""), f"{weight:.3g}")
            table.add_row(*row)
        below = [Text(f"{self.title}: {event.ended}")] if event.ended else []
        return Group(line, table, *below)

    def clients(self) -> list[tuple[str, float, float]]:
        """Clients with loss and weight; of many clients quantiles of losses and of weights."""
        # The table is copied first: this runs in the display's thread.
        rows = [(name, loss, self.weights.get(name, 1.0)) for name, loss in [*self.losses.items()]]
        if len(rows) <= MOST_CLIENTS:
            return rows
        columns = [loss for _, loss, _ in rows], [weight for _, _, weight in rows]
        finite = ([v for v in column if math.isfinite(v)] or [math.nan] for column in columns)
        losses, weights = map(quantiles, finite)
        whose = {"p10": f"{len(rows):,} clients: "}
        return [(whose.get(k, "") + word, losses[k], weights[k]) for k, word in SHOWN.items()]


def sparkline(values: dict[int, float]) -> str:
    """Values as bars between the smallest and the largest, by place; a place without one is empty.

    >>> sparkline({0: 3.0, 1: 2.0, 3: 1.0})
    '█▅ ▁        '
    """
    low = min(values.values(), default=0.0)
    step = (max(values.values(), default=0.0) - low) / (len(BARS) - 1) or 1.0
    bars = {place: BARS[round((value - low) / step)] for place, value in values.items()}
    return "".join(bars.get(place, " ") for place in range(TREND))
