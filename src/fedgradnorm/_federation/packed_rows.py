"""A weighting's rows of many clients as tensors, for checkpoints.

As a table of tables they are slow to make and to write, and take much memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedgradnorm.weighting._base import Weighting

PACKED = "packed"


def packed_rows(weighting: Weighting) -> dict[str, Any]:
    """What ``state_dict`` says, with a tensor of all bound clients for each kind of number."""
    if type(weighting).state_dict is Weighting.state_dict:
        tables = {key: row.cpu().clone() for key, row in weighting.rows.items()}
        extra = copy.deepcopy(weighting.extra)
        return {**extra, "clients": dict(weighting._away), PACKED: tables}
    state = copy.deepcopy(weighting.state_dict())
    rows, names = state["clients"], weighting.clients
    tables = {
        key: torch.tensor([rows[name][key] for name in names], dtype=torch.float64)
        for key in rows[names[0]]
    }
    bound = set(names)
    away = {name: row for name, row in rows.items() if name not in bound}
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
