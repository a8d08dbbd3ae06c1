"""A weighting's rows of many clients, out of a checkpoint that has them as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgradnorm.weighting._base import PACKED


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
