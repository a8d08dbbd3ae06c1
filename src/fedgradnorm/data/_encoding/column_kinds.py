"""The kinds of input columns: how a cell becomes a code, and codes become what a network sees.

A code is one number a cell: the number itself, the place of a category in their list, or seconds
since 1970. A gap is NaN, a category that is not in the list -1. What follows is arithmetic with
tensors, so that an exported program can hold it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._checks import shown
from fedgradnorm.data._encoding.clock_parts import circle, part, seconds
from fedgradnorm.data._files.read_rows import LARGEST
from fedgradnorm.tasks._labels.label_map import LabelMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.float64]

Gaps = Literal["error", "mean", "median", "indicator"]
GAPS = ("error", "mean", "median", "indicator")
UNKNOWN = -1.0
LARGEST_ID = 2.0**53  # from here on not every whole number is a float64


@dataclass(frozen=True)
class Column(ABC):
    """One input column; ``absent`` where this client does not have it: every cell is a gap then.

    ``group`` is the named input that it is part of, where the network takes several.
    """

    name: str
    gaps: Gaps = "error"
    absent: bool = False
    group: str | None = field(default=None, kw_only=True)

    kind: ClassVar[str]
    fillable: ClassVar[bool] = True

    @property
    def allows_gaps(self) -> bool:
        """Whether a cell may be empty."""
        return self.absent or self.gaps != "error"

    @abstractmethod
    def code(self, cell: Any) -> float:
        """The code of a cell that is not empty; a ValueError says what is wrong with it."""

    @abstractmethod
    def values(self, code: Tensor, gap: Tensor) -> Tensor:
        """What the network sees of each code, [rows, numbers]; ``gap`` says where there is none."""

    @abstractmethod
    def parts(self) -> list[str]:
        """What the numbers of ``values`` are called."""

    def learned(self, codes: Codes) -> Self:  # noqa: ARG002
        """The column with what it learns on the codes of the training rows."""
        return self

    def features(self, code: Tensor) -> Tensor:
        """The values, and with an indicator a number more that is 1 where there is a gap."""
        code = torch.full_like(code, math.nan) if self.absent else code
        gap = torch.isnan(code)
        found = self.values(code, gap)
        if self.gaps != "indicator":
            return found
        return torch.cat([found, gap.to(found.dtype)[:, None]], dim=1)

    def names(self) -> list[str]:
        """What the features are called."""
        return [*self.parts(), *([f"{self.name} missing"] if self.gaps == "indicator" else [])]

    def plain(self) -> dict[str, Any]:
        """The column as texts and numbers, for run.json."""
        table = {"kind": self.kind, **asdict(self)}
        if self.group is None:
            del table["group"]
        return table

    def _filling(self, values: Codes) -> float:
        """What stands for a gap; an absent column has nothing to learn from, and is 0."""
        known = values[~np.isnan(values)]
        if not len(known):
            return 0.0
        return float(np.median(known) if self.gaps == "median" else known.mean())


@dataclass(frozen=True)
class NumberColumn(Column):
    """A number, as it is, or with a ``period`` as sine and cosine of its place on a circle."""

    period: float | None = None
    fill: float = 0.0

    kind: ClassVar[str] = "number"

    def code(self, cell: Any) -> float:
        """The number."""
        try:
            value = float(cell)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if abs(value) <= LARGEST:
            return value
        raise ValueError("not a number" if math.isnan(value) else "too large")

    def values(self, code: Tensor, gap: Tensor) -> Tensor:
        """One number, or two; a gap is the fill, or the middle of the circle."""
        filled = torch.where(gap, torch.tensor(self.fill, dtype=code.dtype), code)
        if self.period is None:
            return filled[:, None]
        return torch.where(gap[:, None], 0.0, circle(filled, self.period))

    def parts(self) -> list[str]:
        """Its own name, or with sin and cos."""
        return [self.name] if self.period is None else [f"{self.name} sin", f"{self.name} cos"]

    def learned(self, codes: Codes) -> Self:
        """Mean or median of the numbers there are, where gaps are to be filled."""
        return replace(self, fill=self._filling(codes)) if self.allows_gaps else self


@dataclass(frozen=True)
class CategoryColumn(Column):
    """One of several ``categories``: a number for each, 1 for the cell's own and 0 for the others.

    A gap and a category that is not in the list are zeros.
    """

    categories: tuple[str, ...] = ()

    kind: ClassVar[str] = "category"

    @cached_property
    def _map(self) -> LabelMap:
        return LabelMap.listed(self.categories, f"categories of {self.name!r}", least=1)

    def code(self, cell: Any) -> float:
        """Its place in the list."""
        found = self._map.codes([str(cell).strip()])[0]
        return UNKNOWN if found is None else float(found)

    def values(self, code: Tensor, gap: Tensor) -> Tensor:  # noqa: ARG002
        """One for each category."""
        places = torch.arange(len(self.categories), device=code.device, dtype=code.dtype)
        return (code[:, None] == places).to(code.dtype)

    def parts(self) -> list[str]:
        """The column's name with that of the category."""
        return [f"{self.name}={category}" for category in self.categories]


@dataclass(frozen=True)
class DateColumn(Column):
    """A date or time: each of ``shown_parts`` is a place on a circle, or the years since 2000."""

    shown_parts: tuple[str, ...] = ()
    form: str | None = None
    fill: float = 0.0

    kind: ClassVar[str] = "date"

    def code(self, cell: Any) -> float:
        """Seconds since 1970."""
        try:
            return seconds(cell, self.form)
        except (ValueError, TypeError, OverflowError, AttributeError):
            wanted = "like 2016-03-01 or 2016-03-01T14:30" if self.form is None else self.form
            raise ValueError(f"not a date ({wanted})") from None

    def values(self, code: Tensor, gap: Tensor) -> Tensor:
        """A gap is the middle of each circle, and in ``elapsed`` the fill."""
        filled = torch.where(gap, torch.tensor(self.fill, dtype=code.dtype), code)
        found = []
        for name in self.shown_parts:
            value = part(name, filled)
            found.append(value if name == "elapsed" else torch.where(gap[:, None], 0.0, value))
        return torch.cat(found, dim=1)

    def parts(self) -> list[str]:
        """The column's name with that of the part."""
        return [
            f"{self.name} {name}{end}"
            for name in self.shown_parts
            for end in ([""] if name == "elapsed" else [" sin", " cos"])
        ]

    def learned(self, codes: Codes) -> Self:
        """Mean or median of the times there are, where gaps are to be filled."""
        return replace(self, fill=self._filling(codes)) if self.allows_gaps else self


@dataclass(frozen=True)
class IdColumn(Column):
    """A whole number that a network looks up in a table of its own: the id of a token."""

    kind: ClassVar[str] = "id"
    fillable: ClassVar[bool] = False

    def code(self, cell: Any) -> float:
        """The number."""
        try:
            value = float(cell)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if value >= 0 and value.is_integer() and value <= LARGEST_ID:
            return value
        raise ValueError("not an id: a whole number of at least 0")

    def values(self, code: Tensor, gap: Tensor) -> Tensor:  # noqa: ARG002
        """The number; what holds ids alone becomes whole numbers after the scaling."""
        return code[:, None]

    def parts(self) -> list[str]:
        """Its own name."""
        return [self.name]


@dataclass(frozen=True)
class StepColumn(Column):
    """No input: it says which sequence a row is a step of, or where in it the step stands.

    ``role`` is "sequence" or "order". A code of the first is the place of the sequence among those
    that the rows tell of; one of the second is a number, or seconds since 1970.
    """

    role: str = "sequence"

    kind: ClassVar[str] = "step"
    fillable: ClassVar[bool] = False

    def code(self, cell: Any) -> float:
        """The place in an order: a number, or a date."""
        try:
            value = float(cell)
        except (TypeError, ValueError, OverflowError):
            try:
                value = seconds(cell, None)
            except (ValueError, TypeError, OverflowError, AttributeError):
                value = math.nan
        if math.isfinite(value):
            return value
        raise ValueError("neither a number nor a date like 2016-03-01")

    def values(self, code: Tensor, gap: Tensor) -> Tensor:  # noqa: ARG002
        """Nothing."""
        return code.new_zeros(len(code), 0)

    def parts(self) -> list[str]:
        """None."""
        return []


_KINDS: dict[str, type[Column]] = {
    kind.kind: kind for kind in (NumberColumn, CategoryColumn, DateColumn, IdColumn, StepColumn)
}


def column_from(table: Mapping[str, Any]) -> Column:
    """The inverse of ``plain``; a KeyError, TypeError or ValueError where it is none."""
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    made: Column = _KINDS[given.pop("kind")](**given)
    texts = [made.name, *getattr(made, "categories", ()), *getattr(made, "shown_parts", ())]
    texts += [made.group or "", getattr(made, "role", "")]
    if not all(isinstance(text, str) for text in texts) or made.gaps not in GAPS:
        raise ValueError(f"column {shown(made.name)}")
    numbers = [getattr(made, "fill", 0.0), getattr(made, "period", None) or 1.0]
    if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
        raise ValueError(f"a number of column {made.name!r}")
    trial = made.features(torch.tensor([0.0, math.nan], dtype=torch.float64))
    if trial.shape != (2, len(made.names())):
        raise ValueError(f"column {made.name!r}")
    return made
