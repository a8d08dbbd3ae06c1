"""Landmine: mine or clutter, from radar, in 29 fields (Xue, Liao, Carin, Krishnapuram, JMLR 2007).

In the layout of the published ``LandmineData.mat``: cells ``feature`` (9 inputs a row) and
``label`` (1 mine, 0 clutter). A field is a client; 3 to 9% of its rows are mines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedgradnorm._client import Client
from fedgradnorm.data._arrays import How
from fedgradnorm.data._matlab import Cells
from fedgradnorm.data._paths import find_data
from fedgradnorm.data._source import Source
from fedgradnorm.tasks._making import classification
from fedgradnorm.tasks._measures import auc

__all__ = ["clients"]

FILE = "LandmineData.mat"
"""What the file is called."""
LABELS = ("clutter", "mine")
"""The classes' names; a label is a place in this tuple."""

_CELLS = Cells("feature", "label", 9, "field", LABELS)


def clients(
    *,
    source: str | Path | None = None,
    fields: Sequence[int] | None = None,
    test_share: float = 0.25,
    validation_share: float = 0.0,
    scaling: How = "pooled",
    seed: int = 0,
) -> list[Client]:
    """A client a minefield, ``field-1`` to ``field-29``: mine or clutter; accuracy and ``auc``.

    A field's rows are split by ``seed``, the same with any others.

    Args:
        source: the file ``LandmineData.mat``. In a config: path.
        fields: the fields to load, by number from 1 to 29; all by default.
        test_share, validation_share: the shares of examples to hold out, each from 0 to 1.
        scaling: standardize inputs with statistics of all clients' training examples ("pooled"), of
            each client's own ("own"), or not at all ("none").
        seed: draws splits and shares of examples; by default the seed of the run.
    """
    task = classification(2, metrics={"auc": auc}, name="mine")
    return _CELLS.clients(
        find_data(source, (FILE,), "landmine"), task, fields,
        test_share=test_share, validation_share=validation_share, scaling=scaling, seed=seed,
    )  # fmt: skip


Source("landmine", clients, "mine or clutter: 29 fields", ("path",)).register()
