"""Rows with named columns: a DataFrame is read by column name, never by position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedgradnorm._errors import DataError

SHOWN = 10  # names that a message lists


def is_frame(x: Any) -> bool:
    """Whether ``x`` is a table with named columns, such as a pandas or polars DataFrame."""
    return hasattr(x, "columns") and hasattr(x, "to_numpy")


def names_of(x: Any, where: str) -> tuple[str, ...]:
    """The column names of a frame; a DataError where two columns have the same."""
    names = tuple(str(name).strip() for name in x.columns)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{where}: more than one column of x is named {twice!r}; rename them")
    return names


def check_order(x: Any, y: Any, where: str) -> None:
    """A DataError where two pandas objects hold the same labels in another order.

    Rows are paired by position, so each input would get another row's target.
    """
    own: Any = getattr(x, "index", None)
    other: Any = getattr(y, "index", None)
    if not (is_frame(x) and hasattr(own, "equals") and hasattr(other, "equals")):
        return
    if len(own) == len(other) and not own.equals(other) and set(own) == set(other):
        raise DataError(
            f"{where}: x and y have the same index in another order, and rows are paired by "
            "position; give y.loc[x.index]"
        )


def picked(x: Any, columns: Sequence[str] | None, where: str) -> Any:
    """The values of a frame's ``columns``, in that order; anything else as it is.

    Other columns of the frame are left out. Without names to go by a frame is refused: its columns
    might have another order than those of the training data.
    """
    if not is_frame(x):
        return x
    if columns is None:
        raise DataError(
            f"{where}: x is a DataFrame, but the training columns have no names to match; put its "
            "columns in the training order and give x.to_numpy()"
        )
    own = _own_names(x, columns, where)
    return x[[own[name] for name in columns]].to_numpy()


def picked_columns(x: Any, columns: Sequence[str], where: str) -> dict[str, Any]:
    """The cells of a frame's ``columns``, an array for each."""
    own = _own_names(x, columns, where)
    return {name: x[own[name]].to_numpy() for name in columns}


def _own_names(x: Any, columns: Sequence[str], where: str) -> dict[str, Any]:
    """What the frame itself calls its columns; a DataError where one of ``columns`` is missing."""
    own = dict(zip(names_of(x, where), x.columns, strict=True))
    missing = [name for name in columns if name not in own]
    if missing:
        raise DataError(f"{where}: x lacks {_listed(missing)}; it has {_listed(list(own))}")
    return own


def check_names(columns: Any, shape: Sequence[int], where: str) -> tuple[str, ...]:
    """``columns`` as a tuple, or a DataError unless they name each column of a row once."""
    names = () if isinstance(columns, str) else tuple(columns)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise DataError(f"{where}: columns must be distinct texts, not {columns!r}")
    if tuple(shape) != (len(names),):
        raise DataError(
            f"{where}: columns has {len(names)} names, a row of x has shape {tuple(shape)}; "
            "name every number of a row"
        )
    return names


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > SHOWN else ""
    return f"column{'s' * (len(names) > 1)} {', '.join(map(repr, names[:SHOWN]))}{more}"
