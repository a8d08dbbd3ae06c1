"""SARCOS: the torques of a robot arm's seven joints, from positions, speeds and accelerations.

``sarcos_inv_test.mat``, 4,449 rows (Vijayakumar and Schaal 2000; Rasmussen and Williams, *Gaussian
Processes for Machine Learning*, gaussianprocess.org/gpml/data; for research use). SHA-256 begins
with 161a59b5c3b4. Torques have their own units: their squared losses differ 440-fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedgradnorm._client import Client
from fedgradnorm._errors import DataError, choose
from fedgradnorm.data._arrays import How, chosen, client_of, held_out, scaled
from fedgradnorm.data._files.tables import usable
from fedgradnorm.data._matlab import check_numbers, read_matlab
from fedgradnorm.data._paths import find_data
from fedgradnorm.data._source import Source
from fedgradnorm.tasks._making import regression

__all__ = ["clients"]

FILE = "sarcos_inv_test.mat"
"""What the file is called; it holds a variable of this name."""
JOINTS = tuple(f"joint-{k}" for k in range(1, 8))
INPUTS = tuple(f"{what}-{k}" for what in ("position", "speed", "acceleration") for k in range(1, 8))


def clients(
    *,
    source: str | Path | None = None,
    joints: Sequence[str] = JOINTS,
    inputs: Literal["disjoint", "shared"] = "shared",
    test_share: float = 0.2,
    validation_share: float = 0.0,
    scaling: How = "pooled",
    seed: int = 0,
) -> list[Client]:
    """A client a joint, ``joint-1`` to ``joint-7``: its torque from the same 21 numbers.

    With ``inputs="shared"`` all clients have all rows, as a multi-task problem has; ``"disjoint"``
    divides the training rows among them. The test rows are the same for all.

    Args:
        source: the file ``sarcos_inv_test.mat``. In a config: path.
        joints: the joints to load, by name from "joint-1" to "joint-7"; all by default.
        inputs: "shared" gives every client all training examples, "disjoint" a separate part.
        test_share, validation_share: the shares of examples to hold out, each from 0 to 1.
        scaling: standardize inputs with statistics of all clients' training examples ("pooled"), of
            each client's own ("own"), or not at all ("none").
        seed: draws splits and shares of examples; by default the seed of the run.
    """
    choose(inputs, ("disjoint", "shared"), "inputs")
    names = chosen("joints", joints, JOINTS)
    path = find_data(source, (FILE,), "sarcos")
    table = read_matlab(path, [Path(FILE).stem])[Path(FILE).stem]
    if isinstance(table, list) or table.shape[1] != 28 or not len(table):
        raise DataError(f"{path}: expected 28 columns of numbers; download the file again")
    check_numbers(str(path), table, usable(table), "a finite number")
    shares = {"validation": validation_share, "test": test_share}
    drawn = held_out("sarcos", len(table), shares, (), seed) or {"train": np.arange(len(table))}
    order = np.random.default_rng([seed, len(table)]).permutation(drawn["train"])
    made = []
    for name in names:
        k = JOINTS.index(name)
        own = drawn if inputs == "shared" else {**drawn, "train": np.sort(order[k::7])}
        y = table[:, 21 + k].astype(np.float32)
        pairs = {split: (table[at, :21], y[at]) for split, at in own.items()}
        made.append(client_of(name, regression(1, name=name), pairs, columns=INPUTS))
    return scaled(made, scaling)


Source("sarcos", clients, "torques of a robot arm: 7 joints", ("path",)).register()
