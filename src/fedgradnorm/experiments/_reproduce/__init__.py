"""The paper's experiments and our own, as packaged configs: one name, one file, one command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from fedgradnorm._errors import choose
from fedgradnorm.experiments._config.config_file import Config, load_config

NAMES = ("fig2", "table2", "fig3", "scale", "gamma", "alpha", "participation", "steps", "baselines")
"""The experiments, in the order of ``all``: the paper's three, then ours."""

SIDE_BY_SIDE = ("methods-mtfl", "methods-radcom")
"""Every method beside every other on faces and on signals: ``methods`` is both."""

BENEFIT: dict[str, tuple[str, tuple[str, ...]]] = {
    "benefit-school": ("benefit-school", ()),
    "benefit-landmine": ("benefit-landmine", ()),
    **{f"benefit-beijing-{n}": ("benefit-beijing", (f"data.rows={n}",)) for n in (50, 200, 1000)},
    **{f"benefit-mtfl-{n}": ("benefit-mtfl", (f"data.rows={n}",)) for n in (50, 199)},
}
"""The benefit over training alone: ``benefit`` is all of these. Each has a config and overrides."""

_GROUPS = {"all": NAMES, "methods": SIDE_BY_SIDE, "benefit": tuple(BENEFIT)}

REAL_SIGNALS = "RadComDynamic.hdf5"
"""The file that, in the folder named by FEDGRADNORM_DATA, takes the place of generated signals."""


def experiments(name: str) -> tuple[str, ...]:
    """The experiments that ``name`` stands for: itself, or several."""
    choose(name, (*NAMES, *SIDE_BY_SIDE, *BENEFIT, *_GROUPS), "experiment")
    return _GROUPS.get(name, (name,))


def load_experiment(
    name: str, overrides: Sequence[str] = (), *, allow: Sequence[str] = ()
) -> Config:
    """The packaged config of that name, changed by ``key=value`` words."""
    choose(name, (*NAMES, *SIDE_BY_SIDE, *BENEFIT), "experiment")
    file, words = BENEFIT.get(name, (name, ()))
    overrides = [*words, *overrides]
    with as_file(files("fedgradnorm.experiments._reproduce") / f"{file}.toml") as path:
        config = load_config(path, overrides, allow=allow)
        if config.data.source != "radcom" or "path" in (config.data.model_extra or {}):
            return config
        real = real_signals()
        if real is None:
            return config
        return load_config(path, [f"data.path={real}", *overrides], allow=allow)


def real_signals() -> Path | None:
    """RadComDynamic's own file, where the user has put it."""
    folder = os.environ.get("FEDGRADNORM_DATA")
    path = Path(folder).expanduser() / REAL_SIGNALS if folder else None
    return path if path is not None and path.is_file() else None
