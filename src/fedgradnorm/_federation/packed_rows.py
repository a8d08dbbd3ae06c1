"""A weighting's rows of many clients as tensors: as a table of tables they are slow to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

PACKED = "packed"


def packed_rows(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A weighting's state with one tensor for each kind of number, in the order of ``names``."""
    rows = state["clients"]
    keys = list(rows[names[0]])
    tables = {
        key: torch.tensor([rows[name][key] for name in names], dtype=torch.float64) for key in keys
    }
    known = set(names)
    away = {name: row for name, row in rows.items() if name not in known}
    return {**state, "clients": away, PACKED: tables}


def unpacked_rows(state: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """What ``packed_rows`` was given; a state that is not packed is left as it is."""
    if PACKED not in state:
        return state
    columns = {key: table.tolist() for key, table in state[PACKED].items()}
    rest = {key: value for key, value in state.items() if key != PACKED}
    if any(len(column) != len(names) for column in columns.values()):
        raise ValueError(f"weights of another number of clients than {len(names)}")
    rows = {n: {key: column[i] for key, column in columns.items()} for i, n in enumerate(names)}
    return {**rest, "clients": {**state["clients"], **rows}}
