"""Configs that come with the package: the paper's experiments, our own, and examples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedgradnorm._errors import choose
from fedgradnorm._toml import CONFIGS

EXPERIMENTS = (
    "fig2", "table2", "fig3", "scale", "gamma", "alpha", "participation", "steps", "baselines"
)  # fmt: skip
"""Those of ``reproduce all``, in its order: the paper's three, then ours."""

SIDE_BY_SIDE = ("methods-mtfl", "methods-radcom")
"""Every method on faces and on signals: ``reproduce methods`` is both."""

BENEFIT: dict[str, tuple[str, tuple[str, ...]]] = {
    "benefit-school": ("benefit-school", ()),
    "benefit-landmine": ("benefit-landmine", ()),
    **{f"benefit-beijing-{n}": ("benefit-beijing", (f"data.rows={n}",)) for n in (50, 200, 1000)},
    **{f"benefit-mtfl-{n}": ("benefit-mtfl", (f"data.rows={n}",)) for n in (50, 199)},
}
"""The experiments of ``reproduce benefit``: a config and overrides for each."""

GROUPS = {"all": EXPERIMENTS, "methods": SIDE_BY_SIDE, "benefit": tuple(BENEFIT)}

REAL_SIGNALS = "RadComDynamic.hdf5"
"""A file in the folder named by FEDGRADNORM_DATA that experiments use instead of made signals."""


def shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(CONFIGS.glob("*.toml"))}


def config_file(place: str | Path) -> tuple[Path, tuple[str, ...]]:
    """The file that a path or the name of a shipped config stands for, and overrides with it.

    A file of your own comes first, also one without an ending.
    """
    name, words = BENEFIT.get(str(place), (str(place), ()))
    path = shipped().get(name)
    return (Path(place), ()) if path is None or os.path.lexists(place) else (path, words)


def with_real_signals(table: dict[str, Any], name: str | Path) -> dict[str, Any]:
    """An experiment's table with RadComDynamic's own file, where the user has put it."""
    data, folder = table.get("data"), os.environ.get("FEDGRADNORM_DATA")
    made = isinstance(data, dict) and data.get("source") == "radcom" and "path" not in data
    if not folder or not made or str(name) not in (*EXPERIMENTS, *SIDE_BY_SIDE):
        return table
    path = Path(folder).expanduser() / REAL_SIGNALS
    return {**table, "data": {**table["data"], "path": str(path)}} if path.is_file() else table


def experiments(name: str) -> tuple[str, ...]:
    """The experiments that ``name`` stands for: itself, or several."""
    choose(name, (*EXPERIMENTS, *SIDE_BY_SIDE, *BENEFIT, *GROUPS), "experiment")
    return GROUPS.get(name, (name,))
