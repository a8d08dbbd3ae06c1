"""What a run folder holds beside tensors: the one reader of its manifest and tables.

``load`` takes the first fault as an error. Reports show what is readable and name the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgradnorm._errors import RunFolderError
from fedgradnorm._round.reports import KEYS
from fedgradnorm._runs.csv_table import Row, checksum_of, columns_of, salvaged
from fedgradnorm._runs.layout import MANIFEST, METRICS, SPREAD
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm._runs.many.spread import COLUMNS
from fedgradnorm._runs.reading import present, read_file

TABLES = (METRICS, SPREAD)


@dataclass
class Contents:
    """A run folder's manifest and tables; ``faults`` are in words that name the file."""

    manifest: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)


def read_contents(folder: Path) -> Contents:
    """Everything that can be read, and what is wrong with the rest."""
    found = Contents()
    if present(folder / MANIFEST):
        try:
            found.manifest = read_manifest(folder)
        except RunFolderError as error:
            found.faults.append(str(error))
    else:
        found.faults.append(f"{MANIFEST} is missing: settings and provenance are unknown")
    for name in TABLES:
        found.rows[name] = _rows(folder / name, found)
    return found


def _rows(path: Path, found: Contents) -> list[Row]:
    """The rows of a table that can be used; a fault for the others."""
    if not present(path):
        if path.name == METRICS:
            found.faults.append(f"{METRICS} is missing: there are no curves")
        return []
    try:
        data = read_file(path)
        rows, damage = salvaged(path, data)
    except RunFolderError as error:
        data, rows, damage = b"", [], str(error)
    whole = [row for row in rows if all(row.get(key) is not None for key in _needed(path))]
    if len(whole) < len(rows) and not damage:
        damage = f"{path} is damaged: {len(rows) - len(whole)} of its rows are incomplete"
    known = found.manifest.get("tables", {}).get(path.name)
    if known is not None and known != checksum_of(data) and not damage:
        damage = f"{path} is damaged: its rows are not those that {MANIFEST} knows"
    if damage:
        found.faults.append(damage)
    elif path.name == METRICS:
        found.columns = columns_of(data)
    return whole


def _needed(path: Path) -> Sequence[str]:
    """The columns in which a row of this table has no gap."""
    return {METRICS: KEYS, SPREAD: COLUMNS}[path.name]
