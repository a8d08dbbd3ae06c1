"""Own heads, shared heads, or shared heads with own bias: which of them validation picks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._benefit.client_gain import gains

if TYPE_CHECKING:
    from fedgradnorm._client import Client
    from fedgradnorm._runs.run import Run

ALONE = "training alone"
HEADS: dict[str, dict[str, Any]] = {
    "own heads": {},
    "shared heads": {"heads": "task"},
    "shared heads with own bias": {"heads": "task", "head_own": "bias"},
}
"""What is tried, with its settings."""


def validation_gains(
    runs: Mapping[str, Run], alone: Run, clients: Sequence[Client]
) -> dict[str, float]:
    """Each run's gain over ``alone`` in validation loss, in percent, averaged over tasks.

    A task's loss is the mean over its clients, so that one client's loss near 0 decides nothing.
    """
    tasks: dict[str, list[str]] = {}
    for client in clients:
        if client.validation is not None:
            tasks.setdefault(client.shared_task, []).append(client.name)
    by_run = {name: _losses(run) for name, run in (*runs.items(), (ALONE, alone))}
    means = {
        name: np.array([fmean(losses[client] for client in own) for own in tasks.values()])
        for name, losses in by_run.items()
    }
    found = {name: float(gains(means[ALONE], means[name], "%").mean()) for name in HEADS}
    return {name: value if np.isfinite(value) else -np.inf for name, value in found.items()}


def _losses(run: Run) -> Mapping[str, float]:
    """Every client's validation loss at the end of the run."""
    rows = run.history[run.history.split == "validation"]
    ends = rows.drop_duplicates("client", keep="last")
    return dict(zip(ends.client, ends.loss, strict=True))
