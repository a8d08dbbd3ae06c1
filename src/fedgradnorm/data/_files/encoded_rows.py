"""Rows of files as the numbers that a network sees, by what the training rows teach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedgradnorm.data._encoding.column_kinds import CategoryColumn
from fedgradnorm.data._encoding.column_plan import ColumnPlan, recoded
from fedgradnorm.data._encoding.encoding import Encoding, tell_unknown
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.models._streamed.rows import Streamed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Part = tuple[FileRows, NDArray[np.int64]]


def encoded(
    name: str, plan: ColumnPlan, parts: Mapping[str, Part]
) -> tuple[Encoding | None, dict[str, NDArray[Any]]]:
    """The encoding, where columns are more than plain numbers, and the inputs of each split."""
    if plan.plain:
        return None, {part: chosen(rows.x, at) for part, (rows, at) in parts.items()}
    train, at = parts["train"]
    assert train.inputs is not None
    encoding = plan.learned(train.inputs, train.x[at], train.texts, train.bad.source)
    return encoding, {
        part: _rows(f"client {name!r}, {part} data", encoding, rows, index)
        for part, (rows, index) in parts.items()
    }


def chosen(x: Any, at: NDArray[np.int64]) -> Any:
    """Some rows; of inputs that are read batch by batch none is read."""
    return Streamed(x.feed.subset(at)) if isinstance(x, Streamed) else x[at]


def _rows(
    where: str, encoding: Encoding, rows: FileRows, at: NDArray[np.int64]
) -> NDArray[np.float64]:
    codes = rows.x[at].astype(np.float64)
    for i, column in enumerate(encoding.columns):
        if isinstance(column, CategoryColumn) and not column.absent:
            texts = rows.texts.get(column.name, ())
            cells = [texts[int(code)] if code >= 0 else "" for code in codes[:, i]]
            codes[:, i] = recoded(column, codes[:, i], texts)
            tell_unknown(column, cells, codes[:, i], where)
    found: NDArray[np.float64] = encoding.encode(torch.from_numpy(codes)).numpy()
    return found
