"""Small files in the layout of School and Landmine, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.io import savemat


def cell(tables: list) -> np.ndarray:
    """A 1 x n cell array of tables, as MATLAB has it."""
    made = np.empty((1, len(tables)), dtype=object)
    for place, table in enumerate(tables):
        made[0, place] = table
    return made


def school_tables(schools: int = 3, rows: int = 8) -> tuple[list, list]:
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 9, (rows + i, 28)).astype(np.uint8) for i in range(schools)]
    return x, [rng.integers(1, 70, (len(each), 1)).astype(np.uint8) for each in x]


def landmine_tables(fields: int = 3, rows: int = 8) -> tuple[list, list]:
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(rows + i, 9)) for i in range(fields)]
    return x, [(np.arange(len(each)) % 3 == 0).astype(np.uint8)[:, None] for each in x]


def write_school(path: Path, x: list | None = None, y: list | None = None, **options) -> Path:
    first, second = school_tables()
    savemat(path, {"X": cell(x or first), "Y": cell(y or second)}, **options)
    return path


def write_landmine(path: Path, x: list | None = None, y: list | None = None, **options) -> Path:
    first, second = landmine_tables()
    savemat(path, {"feature": cell(x or first), "label": cell(y or second)}, **options)
    return path
