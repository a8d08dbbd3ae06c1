"""Runs in memory for the tests of reports, with effects that the tests choose."""

from __future__ import annotations

import math

import numpy as np

from fedgradnorm._methods import METHODS
from fedgradnorm._runs.reader import StoredRun

CLIENTS = ("landmark", "gender")


def run(method="fedrep", seed=0, gain=0.0, clients=CLIENTS, *, metric="accuracy", name="test",
        finished=True, constant=None, **config):  # fmt: skip
    """A run whose losses end ``gain`` below the baseline's, and whose accuracy is that much higher.

    A dict as ``gain`` is by client. Seeds differ a little, so that tests have a spread.
    """
    rows = []
    noise = 0.004 * math.sin(17 * seed + len(method))
    for epoch in range(5):
        for place, client in enumerate(clients):
            mine = gain.get(client, 0.0) if isinstance(gain, dict) else gain
            here = {"round": epoch, "epoch": float(epoch), "client": client}
            weight = 1.0 if method == "fedrep" else 1 + 0.2 * math.sin(epoch + place)
            if epoch:
                rows.append({**here, "split": "batch", "weight": weight, "loss": 1.0})
            loss = (10 - epoch) * (1 - mine * epoch / 4 + noise)
            accuracy = 0.5 + (mine * epoch / 4 - noise) / 2
            value = accuracy if metric == "accuracy" else loss / 3
            for split in ("train", "test"):
                rows.append({**here, "split": split, "weight": weight, "loss": loss,
                             "bytes": 1000 * epoch, metric: value})  # fmt: skip
    manifest = {"finished": finished, "rounds": 4, "seconds": 2.0}
    if constant is not None:
        manifest["clients"] = {c: {"baseline": {metric: constant}} for c in clients}
    config = {"name": name, "method": method, "seed": seed, **config}
    return StoredRun(f"{method}-seed{seed}", method, seed, rows, manifest, config)


def many(count, seeds=2, **rest):
    """The first ``count`` methods, gaining from -20 % to +30 %, fedrep nothing."""
    names = ["fedrep", *(name for name in METHODS if name != "fedrep")][:count]
    spread = np.linspace(-0.2, 0.3, count)
    return [
        run(name, seed, 0.0 if name == "fedrep" else float(gain), **rest)
        for name, gain in zip(names, spread, strict=True)
        for seed in range(seeds)
    ]
