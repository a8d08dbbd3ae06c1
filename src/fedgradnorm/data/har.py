"""HAR: what 30 people do, from a smartphone's accelerometer and gyroscope.

UCI *Human Activity Recognition Using Smartphones* (Anguita, Ghio, Oneto, Parra, Reyes-Ortiz, ESANN
2013; CC BY 4.0), as ``har.npz``: ``x`` [10,299, 9, 128] (body acceleration, gyroscope and total
acceleration, three axes each, at 50 Hz), ``y`` (6 classes), ``subject`` (1 .. 30). SHA-256 begins
with 077d85352392.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgradnorm._checks import whole
from fedgradnorm._client import Client
from fedgradnorm._errors import DataError
from fedgradnorm.data._arrays import How, chosen, client_from_arrays, rows_of, scaled
from fedgradnorm.data._files.archives import read_arrays
from fedgradnorm.data._paths import find_data
from fedgradnorm.data._source import Source
from fedgradnorm.tasks._making import classification

__all__ = ["clients"]

FILE = "har.npz"
"""What the file is called."""
LABELS = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
"""The activities; a label is a place in this tuple."""


def clients(
    *,
    source: str | Path | None = None,
    people: Sequence[int] | None = None,
    rows: int | None = None,
    test_share: float = 0.25,
    validation_share: float = 0.0,
    scaling: How = "pooled",
    seed: int = 0,
) -> list[Client]:
    """A client a person, ``person-1`` to ``person-30``: one of six activities from 9 x 128 numbers.

    Windows of a recording overlap by half, so a random split is optimistic; a person's rows are
    split by ``seed``, the same with any others. ``rows`` keeps so many of the training rows.

    Args:
        source: the file ``har.npz``. In a config: path.
        people: the people to load, by number from 1 to 30; all by default.
        rows: how many training examples to draw for each person; all by default.
        test_share, validation_share: the shares of examples to hold out, each from 0 to 1.
        scaling: standardize inputs per channel, with statistics of all clients' training examples
            ("pooled"), of each client's own ("own"), or not at all ("none").
        seed: draws splits and shares of examples; by default the seed of the run.
    """
    path = find_data(source, (FILE,), "har")
    arrays = read_arrays(path, ["x", "y", "subject"])
    x, y, who = arrays["x"], arrays["y"], arrays["subject"]
    fits = x.shape[1:] == (9, 128) and x.dtype.kind == "f" and y.shape == who.shape == x.shape[:1]
    if not fits or not len(x) or not np.isin(y, range(6)).all():
        raise DataError(f"{path}: not the arrays of HAR; use the file that its page describes")
    task, made = classification(6, name="activity"), []
    for person in chosen("people", people, np.unique(who).tolist()):
        own = who == person
        client = client_from_arrays(
            f"person-{person}", task, (x[own].astype(np.float32), y[own].astype(np.int64)),
            test_share=test_share, validation_share=validation_share, seed=seed,
        )  # fmt: skip
        client = replace(client, labels=LABELS)
        if rows is not None:
            order = np.random.default_rng([seed, int(person)]).permutation(client.size)
            some = np.sort(order[: whole("har: rows", rows, 1)])
            client = replace(client, train=rows_of(client.train, some))
        made.append(client)
    return scaled(made, scaling)


Source("har", clients, "smartphone activity: 30 people", ("path",)).register()
