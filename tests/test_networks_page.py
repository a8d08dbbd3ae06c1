"""The table of docs/networks.md: every line in it does what it says, as it stands there."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedgradnorm as fgn

PAGE = (Path(__file__).parents[1] / "docs" / "networks.md").read_text()
LINES = re.findall(r"^\| [^|]+ \| `(fgn\.[^`]+)` \|$", PAGE, flags=re.MULTILINE)
ROWS = 24


def names() -> dict[str, Any]:
    """What the lines speak of."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 4)), np.arange(ROWS) % 2
    layers = OrderedDict(encoder=nn.Linear(4, 6), norm=nn.BatchNorm1d(6), adapter=nn.Linear(6, 3))
    task = fgn.classification(2)
    return {
        "fgn": fgn,
        "nn": nn,
        "x": x,
        "y": y,
        "wide": rng.normal(size=(ROWS, 9)),
        "rows": [rng.integers(0, 9, size=k % 4 + 1) for k in range(ROWS)],
        "task": task,
        "network": nn.Sequential(layers),
        "clients": [fgn.Client(name, task, train=(x, y)) for name in ("a", "b")],
    }


def test_the_table_has_lines() -> None:
    assert len(LINES) >= 12


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_table_runs(line: str) -> None:
    made = eval(line, names())
    assert isinstance(made, fgn.Run | fgn.Client)
    assert not isinstance(made, fgn.Run) or made.finished
