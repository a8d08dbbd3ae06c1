"""Cells of a comparison's tables: how each kind of number is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedgradnorm._report.arms import Arm
from fedgradnorm._report.grid import Cell
from fedgradnorm._report.tables.summaries import fixed, loss
from fedgradnorm._stored.summary import Estimate, estimate
from fedgradnorm.tasks._named_metrics import higher_is_better

BEYOND = 1000
"""Percent; a relative gain is larger only where what it is relative to is next to nothing."""


def blank() -> Cell:
    """Nothing to say here."""
    return Cell("-")


def word(text: str) -> Cell:
    """A name, or any other text; nothing to say where there is none."""
    return Cell(text) if text else blank()


def whole(count: int) -> Cell:
    """How many."""
    return Cell(str(count), {"": float(count)})


def task_cell(task: str, unit: str = "") -> Cell:
    """A task's name, with the unit that it is measured in."""
    return Cell(f"{task}{unit}", task=task)


def arm_cell(label: str) -> Cell:
    """An arm's name."""
    return Cell(label, arm=label)


def about(arm: Arm | None, cell: Cell) -> Cell:
    """The cell as one that is about ``arm``; nothing is about nobody."""
    return cell if arm is None or cell == blank() else replace(cell, arm=arm.label)


def number(value: Estimate, digits: int | None = None, *, bold: bool = False) -> Cell:
    """A mean with its interval; as many digits as a loss has unless told."""
    if math.isnan(value.mean):
        return Cell("nan", {"": math.nan})
    text = loss(value) if digits is None else fixed(value, digits)
    return Cell(text, _numbers(value), bold)


def score(value: Estimate, metric: str, *, bold: bool = False) -> Cell:
    """A metric: an accuracy in percent, or an error with its name."""
    if math.isnan(value.mean):
        return Cell(f"{metric.upper()} n/a", {"": math.nan}, higher=higher_is_better(metric))
    if metric != "accuracy":
        cell = number(value, bold=bold)
        text, higher = f"{metric.upper()} {cell.text}", higher_is_better(metric)
        return Cell(text, cell.numbers, bold, higher=higher)
    scaled = Estimate(100 * value.mean, 100 * value.half, value.count)
    return Cell(f"{fixed(scaled, 1)} %", _numbers(scaled), bold, higher=True)


def percent(value: Estimate) -> Cell:
    """A signed gain in percent; of one beyond all measure only that it is."""
    if math.isnan(value.mean):
        return Cell("nan", {"": math.nan})
    if abs(value.mean) > BEYOND:
        beyond = f"> {BEYOND} %" if value.mean > 0 else f"< -{BEYOND} %"
        return Cell(beyond, _numbers(value), higher=True)
    half = "" if math.isnan(value.half) else f" ± {value.half:.1f}"
    return Cell(f"{value.mean:+.1f}{half} %", _numbers(value), higher=True)


def is_beyond(cell: Cell) -> bool:
    """Whether it holds a gain beyond all measure."""
    return cell.text.removesuffix(" %") in (f"> {BEYOND}", f"< -{BEYOND}")


def p_value(p: float | None) -> Cell:
    """A p-value; small ones as "< 0.001"."""
    if p is None or math.isnan(p):
        return blank()
    return Cell("< 0.001" if p < 0.001 else f"{p:.3f}", {"": p})


def epochs(reached: Sequence[float]) -> Cell:
    """Mean epochs over the seeds that got there, and how many of them did unless all."""
    there = [epoch for epoch in reached if not math.isnan(epoch)]
    if not reached:
        return blank()
    share = "" if len(there) == len(reached) else f" ({len(there)}/{len(reached)})"
    if not there:
        return Cell("never", {"": math.nan, "_reached": 0.0})
    value = estimate(there)
    return Cell(f"{value.mean:.1f}{share}", {"": value.mean, "_reached": len(there)})


def brief(values: Sequence[float], digits: int) -> Cell:
    """The mean alone, of what is known; the interval is kept for files."""
    known = [value for value in values if not math.isnan(value)]
    return bare(number(estimate(known), digits)) if known else blank()


def bare(cell: Cell) -> Cell:
    """The cell's mean without name, interval and unit, which stand elsewhere."""
    mean = cell.text.partition(" ±")[0].removesuffix(" %")
    return replace(cell, text=mean if is_beyond(cell) else mean.rpartition(" ")[2])


def _numbers(value: Estimate) -> dict[str, float]:
    return {"": value.mean, "_ci95": value.half, "_n": float(value.count)}
