"""Tables in long form: a row is a step, and the rows of one sequence are one sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedgradnorm._checks import shown
from fedgradnorm._errors import DataError
from fedgradnorm.data._bad_rows import BadRows, OnBad
from fedgradnorm.data._encoding.arranging import step_rows
from fedgradnorm.data._encoding.column_plan import ColumnPlan
from fedgradnorm.data._files.read_rows import FileRows

if TYPE_CHECKING:
    from numpy.typing import NDArray


def joined_steps(rows: FileRows, plan: ColumnPlan) -> FileRows:
    """A row for each sequence; it is known by the number of the first row of the file it has.

    A step that cannot be used makes its sequence one that cannot. The label of a sequence is the
    one that its rows have; rows without one, such as all but the last, say nothing.
    """
    assert rows.inputs is not None
    assert isinstance(rows.x, np.ndarray)
    columns = [plan.column(name) for name in rows.inputs]
    steps = [at.numpy() for at in step_rows(columns, torch.from_numpy(rows.x))]
    first = [int(at.min()) for at in steps]
    on_bad: OnBad = "drop" if rows.bad.on_bad == "drop" else "error"
    bad: BadRows[int] = BadRows(on_bad, rows.bad.source)
    for at, begin in zip(steps, first, strict=True):
        wrong = [why for i in at if (why := rows.bad.reasons.get(rows.rows[i]))]
        if wrong:
            bad.reasons[rows.rows[begin]] = wrong[0]
    return FileRows(
        rows.x,
        _targets(rows, plan, steps),
        [rows.rows[i] for i in first],
        None if rows.lines is None else [rows.lines[i] for i in first],
        bad,
        rows.inputs,
        rows.texts,
        {name: [cells[i] for i in first] for name, cells in rows.marks.items()},
        steps,
    )


def _targets(
    rows: FileRows, plan: ColumnPlan, steps: Sequence[NDArray[np.int64]]
) -> NDArray[np.float64] | list[str]:
    """The target of each sequence."""
    if isinstance(rows.y, list):
        texts = rows.y
        return [_one(rows, plan, at, [texts[i] for i in at if texts[i]], "") for at in steps]
    y = rows.y
    found = [
        [_one(rows, plan, at, _known(y[at, k]), math.nan) for k in range(y.shape[1])]
        for at in steps
    ]
    return np.array(found, dtype=np.float64)


def _known(values: NDArray[np.float64]) -> list[float]:
    return [value for value in values.tolist() if not math.isnan(value)]


def _one(
    rows: FileRows, plan: ColumnPlan, at: NDArray[np.int64], labels: Sequence[Any], none: Any
) -> Any:
    """The one label of a sequence."""
    distinct = list(dict.fromkeys(labels))
    if len(distinct) > 1:
        raise DataError(
            f"{rows.where(int(at.min()))}: the sequence that begins here (column "
            f"{plan.sequence!r}) has the targets {shown(distinct[0])} and {shown(distinct[1])}; a "
            "sequence has one, in each of its rows or in some of them"
        )
    return distinct[0] if distinct else none
