"""Which runs were on data that a program made: the one place that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedgradnorm._stored.reader import StoredRun

SYNTHETIC = "Synthetic data"


def made_by_program(data: Mapping[str, Any]) -> str:
    """What a config's data table generates, in words; nothing where it reads real data.

    >>> made_by_program({"source": "faces"}), made_by_program({"source": "mtfl"})
    ('drawn faces, not photographs', '')
    """
    if data.get("source") == "radcom" and not data.get("path"):
        return "generated signals, not RadComDynamic's"
    return "drawn faces, not photographs" if data.get("source") == "faces" else ""


def synthetic(runs: Iterable[StoredRun]) -> str:
    """``Synthetic data: ...`` where any of the runs is on such data; else nothing."""
    tables = (run.config.get("data") for run in runs)
    made = dict.fromkeys(made_by_program(t) for t in tables if isinstance(t, Mapping))
    words = ", ".join(filter(None, made))
    return f"{SYNTHETIC}: {words}" if words else ""
