"""Dates: a cell as seconds since 1970, and seconds as parts of day, week, month and year.

A time with an offset is taken to UTC; one without is taken as it is written.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import torch
from torch import Tensor

DAY = 86400.0
PARTS = ("hour", "weekday", "day", "month", "elapsed")
"""What can be made of a date; all but the last are places on a circle."""

_BEGIN = datetime(1970, 1, 1)
_YEAR_2000 = (datetime(2000, 1, 1) - _BEGIN).total_seconds()
_YEAR = 365.2425  # days


def seconds(cell: Any, form: str | None = None) -> float:
    """Seconds since 1970 of a date, a time or a text (ISO 8601, or as ``form`` says).

    A ValueError where it is none.

    >>> seconds("1970-01-02T00:00:01")
    86401.0
    >>> seconds("2.1.1970", "%d.%m.%Y")
    86400.0
    """
    if isinstance(cell, datetime):
        when = cell
    elif isinstance(cell, date):
        when = datetime(cell.year, cell.month, cell.day)
    else:
        text = str(cell).strip()
        when = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return (when - _BEGIN).total_seconds()


def part(name: str, time: Tensor) -> Tensor:
    """A part of each time: sine and cosine of its place, or years since 2000 ("elapsed").

    In float64 and without a calendar's tables, so that an exported program can hold it.
    """
    days = torch.floor(time / DAY)
    if name == "elapsed":
        return ((time - _YEAR_2000) / (DAY * _YEAR))[:, None]
    if name == "hour":
        return circle(time - days * DAY, DAY)
    if name == "weekday":
        return circle(days + 3, 7.0)  # 1970 began on a Thursday; Monday is 0
    day, month = _calendar(days)
    return circle(day - 1, 31.0) if name == "day" else circle(month - 1, 12.0)


def circle(value: Tensor, period: float) -> Tensor:
    """A value as a point on a circle that it goes round in a ``period``: sine and cosine."""
    # As tensors, because ONNX has plain numbers in single precision only.
    length = torch.tensor(period, dtype=value.dtype, device=value.device)
    turns = value / length
    turn = (turns - torch.floor(turns)) * torch.tensor(2 * math.pi, dtype=value.dtype)
    return torch.stack([turn.sin(), turn.cos()], dim=1)


def _calendar(days: Tensor) -> tuple[Tensor, Tensor]:
    """Day of the month and month of the Gregorian calendar, from days since 1970.

    Years are counted from March, so that the day that is there or not comes last in them; 400 of
    them have 146,097 days.
    """
    from_march = days + 719468  # since the first of March of the year 0
    of_era = from_march - torch.floor(from_march / 146097) * 146097
    leap = torch.floor(of_era / 1460) - torch.floor(of_era / 36524) + torch.floor(of_era / 146096)
    year = torch.floor((of_era - leap) / 365)
    of_year = of_era - (365 * year + torch.floor(year / 4) - torch.floor(year / 100))
    month = torch.floor((5 * of_year + 2) / 153)
    day = of_year - torch.floor((153 * month + 2) / 5) + 1
    return day, torch.where(month < 10, month + 3, month - 9)
