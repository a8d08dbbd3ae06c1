"""School: exam scores of 15,362 pupils of 139 London schools (Inner London Education Authority).

A classic of multi-task learning (Goldstein 1991; Argyriou, Evgeniou, Pontil 2008), in the layout of
MALSAR's ``school.mat``: cells ``X`` (28 inputs a pupil) and ``Y`` (the score). A client is a
school.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedgradnorm._client import Client
from fedgradnorm.data._arrays import How
from fedgradnorm.data._matlab import Cells
from fedgradnorm.data._paths import find_data
from fedgradnorm.data._source import Source
from fedgradnorm.tasks._making import regression

__all__ = ["clients"]

FILE = "school.mat"
"""What the file is called."""

_CELLS = Cells("X", "Y", 28, "school")


def clients(
    *,
    source: str | Path | None = None,
    schools: Sequence[int] | None = None,
    test_share: float = 0.25,
    validation_share: float = 0.0,
    scaling: How = "pooled",
    seed: int = 0,
) -> list[Client]:
    """A client a school, ``school-1`` to ``school-139``: the exam score (1 .. 70) by regression.

    A school's rows are split by ``seed``, the same with any others.

    Args:
        source: the file ``school.mat``. In a config: path.
        schools: the schools to load, by number from 1 to 139; all by default.
        test_share, validation_share: the shares of examples to hold out, each from 0 to 1.
        scaling: standardize inputs with statistics of all clients' training examples ("pooled"), of
            each client's own ("own"), or not at all ("none").
        seed: draws splits and shares of examples; by default the seed of the run.
    """
    return _CELLS.clients(
        find_data(source, (FILE,), "school"), regression(1, name="score"), schools,
        test_share=test_share, validation_share=validation_share, scaling=scaling, seed=seed,
    )  # fmt: skip


Source("school", clients, "exam scores of pupils: 139 schools", ("path",)).register()
