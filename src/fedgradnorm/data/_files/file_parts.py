"""Which rows of a client's files train, validate and test, and what is said of the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._client import SPLITS
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._arrays import held_out
from fedgradnorm.data._dropped import log_dropped
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._files.row_splits import SplitPlan, fewer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Part = tuple[FileRows, NDArray[np.int64]]


@dataclass(frozen=True)
class Division:
    """How rows are dealt to splits: by ``cut``, or at random by ``shares``; ``rows`` of them."""

    cut: SplitPlan | None
    shares: Mapping[str, float]
    rows: Any
    seed: int

    def parts(self, name: str, splits: Mapping[str, FileRows]) -> dict[str, Part]:
        """Which rows of which file each split has; bad rows are in none."""
        for rows in splits.values():
            if not len(rows.good()):
                raise _no_rows(rows)
        return fewer(self._all(name, splits), self.rows, self.seed, name)

    def _all(self, name: str, splits: Mapping[str, FileRows]) -> dict[str, Part]:
        train = splits["train"]
        if self.cut is not None:
            doubled = [s for s in SPLITS[1:] if s in splits or self.shares[s]]
            if doubled:
                raise ConfigError(
                    f"client {name!r}: split and {doubled[0]} data or {doubled[0]}_share are both "
                    "given; choose one"
                )
            return {part: (train, at) for part, at in self.cut.parts(train, self.seed).items()}
        good = train.good()
        drawn = held_out(name, len(good), self.shares, list(splits), self.seed)
        found = {part: (train, good[at]) for part, at in drawn.items()}
        return {**{part: (rows, rows.good()) for part, rows in splits.items()}, **found}


def tell_dropped(name: str, splits: Collection[FileRows]) -> None:
    """One line in the log about all rows that were left out of the client's files."""
    reasons = [
        f"{rows.bad.reasons[row]} [{Path(rows.bad.source).name}]"
        for rows in splits
        for row in sorted(rows.bad.reasons)
    ]
    total = sum(len(rows.rows) for rows in splits)
    what = f"client {name!r}: dropped {len(reasons)} of {total} rows"
    log_dropped(what, reasons, ", and by number in Loaded.dropped")


def dropped_rows(splits: Collection[FileRows]) -> dict[str, tuple[int, ...]]:
    """The numbers of the rows that were left out, by file."""
    found = {rows.bad.source: tuple(sorted(rows.bad.reasons)) for rows in splits}
    return {file: numbers for file, numbers in found.items() if numbers}


def _no_rows(rows: FileRows) -> DataError:
    why = f"all {len(rows.rows)} were dropped" if len(rows.rows) else "it has none"
    return DataError(f"{rows.bad.source}: no rows left to use, {why}; check the file")
