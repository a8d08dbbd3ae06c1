"""Run folders for the tests of the page, written without training anything."""

from __future__ import annotations

import json
import math
from pathlib import Path

from fedgradnorm._runs.history import History
from fedgradnorm._runs.manifest import FORMAT

TASKS = {"gender": "accuracy", "landmark": "mae"}
WEIGHTINGS = {
    "fedrep": {"name": "Equal"},
    "fedgradnorm": {"name": "GradNorm", "gamma": 0.9, "rule": "absolute"},
}


def write_run(
    parent: Path,
    method: str = "fedrep",
    seed: int = 0,
    *,
    rounds: int = 12,
    planned: int | None = None,
    tasks: dict[str, str] | None = None,
    shift: float = 0.0,
    manifest: dict | None = None,
    config: str = "",
) -> Path:
    """A run whose numbers are simple functions of round, seed and ``shift``; its folder."""
    names = tasks or TASKS
    folder = parent / f"{method.replace('/', '_')}-seed{seed}{'-' + str(shift) if shift else ''}"
    folder.mkdir(parents=True)
    table = History(["accuracy", "mae"])
    table.append(_rows(names, rounds, seed, shift))
    (folder / "metrics.csv").write_text(table.text())
    given = {
        "format": FORMAT,
        "finished": planned is None,
        "settings": {"seed": seed, "share": "all", "lr": 0.1},
        "weighting": WEIGHTINGS.get(method, {"name": method}),
        "clients": {name: {"kind": "classification"} for name in names},
        "rounds": planned or rounds,
        "command": ["fedgradnorm", "run", "small.toml"],
        "started": f"2026-01-0{seed + 1}T10:00:00+0000",
        "versions": {"fedgradnorm": "0.1.0", "torch": "2.6"},
    }
    (folder / "run.json").write_text(json.dumps({**given, **(manifest or {})}))
    text = f'name = "small"\nmethod = {json.dumps(method)}\nseed = {seed}\n{config}'
    (folder / "config.toml").write_text(text)
    return folder


def _rows(names: dict[str, str], rounds: int, seed: int, shift: float) -> list[dict]:
    rows = []
    for number in range(rounds + 1):
        fall = math.exp(-number / 8) + 0.01 * seed + shift * (1 + seed / 1000)
        for place, (name, metric) in enumerate(names.items()):
            here = {"round": number, "epoch": number / 4, "client": name}
            weight = 1 + 0.1 * place
            if number:
                batch = {
                    "loss": fall,
                    "weight": weight,
                    "loss_ratio": fall,
                    "grad_norm": 1 + place,
                }
                rows.append({**here, "split": "batch", **batch, "active": 1, "weight_frozen": 0})
            if number % 4 == 0:
                value = 1 - fall / 2 if metric == "accuracy" else 5 * fall
                for split, worse in (("train", 1.0), ("test", 1.1)):
                    loss = fall * worse * 10 ** (3 * place)
                    rows.append(
                        {**here, "split": split, "loss": loss, "weight": weight, metric: value}
                    )
    return rows
