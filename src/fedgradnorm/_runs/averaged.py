"""Static weights from a run that learned them."""

from __future__ import annotations

from pathlib import Path

from fedgradnorm._errors import RunFolderError
from fedgradnorm._runs.history import read_history
from fedgradnorm._runs.layout import METRICS
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm.weighting import Static


def averaged_weights(folder: str | Path) -> dict[str, float]:
    """Each client's mean weight over the rounds it took part in, of the finished run there."""
    path = Path(folder)
    manifest = read_manifest(path)
    if not manifest["finished"]:
        raise RunFolderError(f"{path} is not finished; resume it before its weights are averaged")
    seen: dict[str, list[float]] = {name: [] for name in manifest["clients"]}
    for row in read_history(path / METRICS).rows:
        if row["split"] != "batch" or not row.get("active"):
            continue
        if row["client"] not in seen or "weight" not in row:
            raise RunFolderError(f"{path / METRICS} is damaged: {row} is no row of this run")
        seen[row["client"]].append(row["weight"])
    return {name: sum(weights) / len(weights) for name, weights in seen.items() if weights}


def static_from_run(folder: str) -> Static:
    """A run's time-averaged weights, kept constant: is it the moving that helps, or the level?

    Chen et al., "GradNorm" (2018), ask the same of their weights: "GradNorm static" in their
    tables, section 5.3.

    Args:
        folder: folder of a finished run, whose mean weights are used.
    """
    return Static(averaged_weights(folder))
