"""The tables that say whether joining pays, for whom, and for which tasks."""

from __future__ import annotations

from collections.abc import Sequence

from fedgradnorm._report.cells import arm_cell, p_value, percent, whole, word
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._report.worth_gains import Gains
from fedgradnorm._stored.summary import Estimate

_HOW = (
    "gain over alone: relative, in percent, of the held-out metric (auc, accuracy, nme or mae), "
    "more being better; mean over clients, ± half the width of its 95% interval over seeds; "
    "p: of the t-test over seeds that it is zero",
    "shared: the network of all; tuned: a copy of it that the client tuned; chosen: what the "
    "client's own validation rows like best of shared, tuned and alone",
    "gain, lose: share of clients whose own interval over seeds lies above or below zero",
)


def worth_grid(found: Sequence[Gains]) -> Grid:
    """A line per data set, arm and end."""
    columns = (
        "data", "method", "ends with", "gain over alone", "p", "gain", "lose", "worst client",
        "its gain", "seeds",
    )  # fmt: skip
    groups = [
        tuple(_line(one) for one in found if one.data == data)
        for data in dict.fromkeys(one.data for one in found)
    ]
    return Grid("worth", "Does joining pay?", columns, tuple(groups), _HOW)


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
    return Grid("worth-tasks", "Gain over alone, by task", columns, tuple(groups), _HOW[:2])
