"""Tables of the benefit: client by client, by data set and method, and by task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedgradnorm._benefit.benefit import Benefit, folded
from fedgradnorm._benefit.client_gain import UNCLEAR, ClientGain
from fedgradnorm._report.benefit_gains import Gains
from fedgradnorm._report.cells import arm_cell, p_value, percent, whole, word
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._stored.summary import Estimate

TITLE = "Benefit over training alone"

_HOW = (
    "benefit: relative gain over training alone in the held-out metric (auc, accuracy, nme or "
    "mae), in percent, more being better; mean over clients, ± half the width of its 95% "
    "interval over seeds; p: of the t-test over seeds that it is zero",
    "shared: the network of all; tuned: a copy of it that the client tuned; chosen: what the "
    "client's own validation rows like best of shared, tuned and alone",
    "gain, lose: share of clients whose own interval over seeds lies above or below zero",
)


def benefit_grid(found: Sequence[Gains]) -> Grid:
    """A line per data set, arm and end."""
    columns = (
        "data", "method", "ends with", "benefit", "p", "gain", "lose", "worst client",
        "its gain", "seeds",
    )  # fmt: skip
    groups = [
        tuple(_line(one) for one in found if one.data == data)
        for data in dict.fromkeys(one.data for one in found)
    ]
    return Grid("benefit", TITLE, columns, tuple(groups), _HOW)


def _line(one: Gains) -> tuple[Cell, ...]:
    name, least = one.worst
    return (
        word(one.data), arm_cell(one.arm.label), word(one.end), percent(one.mean), p_value(one.p),
        _share(one, +1), _share(one, -1), word(name), percent(Estimate(least, float("nan"), 1)),
        whole(len(one.seeds)),
    )  # fmt: skip


def _share(one: Gains, sign: int) -> Cell:
    if len(one.seeds) < 2:
        return word("")
    share = one.share(sign)
    return Cell(f"{100 * share:.0f} %", {"": share})


def by_task_grid(found: Sequence[Gains]) -> Grid:
    """A line per data set, arm and end, a column per task, of data sets whose tasks differ."""
    several = [one for one in found if len(one.by_task()) > 1]
    tasks = list(dict.fromkeys(task for one in several for task in one.by_task()))
    groups = []
    for data in dict.fromkeys(one.data for one in several):
        rows = []
        for one in (one for one in several if one.data == data):
            known = one.by_task()
            cells = [percent(known[task]) if task in known else word("") for task in tasks]
            rows.append((word(one.data), arm_cell(one.arm.label), word(one.end), *cells))
        groups.append(tuple(rows))
    columns = ("data", "method", "ends with", *tasks)
    return Grid("benefit-tasks", f"{TITLE}, by task", columns, tuple(groups), _HOW[:2])


def client_grid(benefit: Benefit, title: str) -> Grid:
    """One line per client; of many clients, the worst, the median and the best ones."""
    places = folded([one.gain for one in benefit.gains])
    rows = tuple(_client_line(benefit.gains[place]) for place in places)
    left = len(benefit.gains) - len(places)
    notes = ["gain: of errors in percent of what they are alone, of accuracies in points"]
    if left:
        notes += [f"the worst, the median and the best clients; {left} between them left out"]
    columns = ("client", "metric", "alone", "joined", "gain", "95 % interval", "verdict")
    return Grid("benefit-clients", title, columns, (rows,), tuple(notes))


def _client_line(one: ClientGain) -> tuple[Cell, ...]:
    told = one.verdict != UNCLEAR
    return (
        Cell(one.client),
        Cell(one.metric),
        Cell(metric_text(one.alone, one.metric), {"": one.alone}),
        Cell(metric_text(one.joined, one.metric), {"": one.joined}),
        Cell(gain_text(one.gain, one.unit), {"": one.gain}, bold=told),
        Cell(interval_text(one)),
        Cell(one.verdict, bold=told),
    )


def metric_text(value: float, metric: str) -> str:
    """A metric: an accuracy in percent, an error with four digits."""
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def gain_text(gain: float, unit: str) -> str:
    """A gain with its sign and unit."""
    return f"{gain:+.1f} {unit}"


def interval_text(one: ClientGain) -> str:
    """Both ends of an interval, or that there is none."""
    return "-" if math.isnan(one.low) else f"{one.low:+.1f} to {one.high:+.1f}"
