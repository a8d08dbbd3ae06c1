"""Clients from a MATLAB file with one cell of inputs and one of targets for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._arrays import client_from_arrays
from fedgradnorm.data._files.read_rows import usable
from fedgradnorm.data._matlab.format5 import Matrix, read_cells
from fedgradnorm.data._pooled import How, scaled
from fedgradnorm.tasks._task import Task


@dataclass(frozen=True)
class Cells:
    """What a file holds: which variables, how many inputs, and what a client and a target are."""

    inputs: str
    targets: str
    width: int
    unit: str
    classes: tuple[str, ...] | None = None

    def read(self, path: Path) -> list[tuple[Matrix, Matrix]]:
        """Inputs and targets of every client, in file order; a DataError names cell and row."""
        found = read_cells(path, (self.inputs, self.targets))
        x, y = found[self.inputs], found[self.targets]
        if len(x) != len(y) or not x:
            raise DataError(
                f"{path}: {len(x)} cells of {self.inputs} and {len(y)} of {self.targets}; they "
                "must be as many, and at least one"
            )
        pairs = zip(x, y, strict=True)
        return [self._pair(path, number, *pair) for number, pair in enumerate(pairs, start=1)]

    def _pair(self, path: Path, number: int, x: Matrix, y: Matrix) -> tuple[Matrix, Matrix]:
        where = f"{path}, {self.inputs}{{{number}}}"
        if x.shape[1] != self.width:
            raise DataError(f"{where}: {x.shape[1]} columns, not {self.width}; check the file")
        if y.shape != (len(x), 1) or not len(x):
            raise DataError(
                f"{where}: {len(x)} rows, and {self.targets}{{{number}}} has shape {y.shape}; "
                "each row needs one target"
            )
        _check(where, x, usable(x), "a finite number")
        where = f"{path}, {self.targets}{{{number}}}"
        classes = range(len(self.classes or ()))
        good = usable(y) if self.classes is None else np.isin(y, classes)
        what = "a finite number" if self.classes is None else f"one of {list(classes)}"
        _check(where, y, good, what)
        return x, y

    def clients(
        self,
        path: Path,
        task: Task,
        numbers: Sequence[int] | None,
        *,
        test_share: float,
        validation_share: float,
        scaling: How,
        seed: int,
    ) -> list[Client]:
        """A client for each of ``numbers``, counted from 1 as MATLAB does; None means all."""
        cells = self.read(path)
        made = []
        for number in self._chosen(numbers, len(cells)):
            x, y = cells[number - 1]
            loaded = client_from_arrays(
                f"{self.unit}-{number}", task, (x, y[:, 0].astype(np.float32)),
                test_share=test_share, validation_share=validation_share, seed=seed,
            )  # fmt: skip
            made.append(replace(loaded.client, labels=self.classes))
        return scaled(made, scaling)

    def _chosen(self, numbers: Sequence[int] | None, count: int) -> list[int]:
        if numbers is None:
            return list(range(1, count + 1))
        what = f"{self.unit}s"
        if not isinstance(numbers, list | tuple | range) or not numbers:
            raise ConfigError(
                f"{what} must be a list of numbers from 1 to {count}, not {numbers!r}"
            )
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= count:
                raise ConfigError(f"{what}: {number!r} is none of 1 .. {count}")
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"{what}: a number stands twice in {list(numbers)}; name each once")
        return list(numbers)


def _check(where: str, values: Matrix, good: NDArray[np.bool_], what: str) -> None:
    if not good.all():
        row, column = np.argwhere(~good)[0]
        raise DataError(
            f"{where}, row {row + 1}, column {column + 1}: {values[row, column]} is not {what}; "
            "download the file again, or correct it"
        )
