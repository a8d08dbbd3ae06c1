"""Which methods need the right scale of a loss, if heads start at the targets? SARCOS' torques.

    FEDGRADNORM_DATA=... python benchmarks/scales.py     # scales.json and the page's table

The setting of ``units.py`` in own units, with the loss of the largest torque multiplied by SCALES.
Every method chooses among the same learning rates at every scale, by validation on seeds that are
not reported. The score is the share of a torque's test variance that is left, in percent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import record
import units

from fedgradnorm.experiments._statistics import estimate, holm, paired_p

SCALES = (0.01, 1.0, 100.0)
METHODS = {title: how for title, how in units.METHODS.items() if title != "network, alone"}
SCALED = units.LARGE[0]


def clients(seed: int, scale: float) -> units.Clients:
    """The clients in own units; the first torque's loss is ``scale`` times as large."""
    return [
        replace(one, task=replace(one.task, loss_scale=scale)) if one.name == SCALED else one
        for one in units.clients(seed, "own units")
    ]


def curves(made: units.Clients, method: str, choice: units.Choice) -> dict[str, np.ndarray]:
    """Unexplained variance by split, [evaluations, clients], without the scale."""
    found = units.curves(made, method, "targets", choice)
    return {split: part / [one.task.loss_scale for one in made] for split, part in found.items()}


def measured(title: str, scale: float, seeds: Sequence[int]) -> record.Row:
    """One method at one scale: tuned, then trained from the reported seeds."""
    start, (method, options) = time.process_time(), METHODS[title]
    tuning = [clients(seed, scale) for seed in units.TUNED_ON]
    tried = []
    for choice in units.choices(options):
        found = [curves(made, method, choice)["validation"] for made in tuning]
        tried.append((choice, float(np.mean([np.nanmin(one, axis=0).mean() for one in found]))))
    choice, validation = min(tried, key=lambda one: one[1])
    ends = [units.kept(curves(clients(seed, scale), method, choice))[-1] for seed in seeds]
    return {
        "scale": scale, "model": title, "method": method, "rate": choice[0],
        **{f"weighting.{k}": v for k, v in choice[1].items()}, "validation": validation,
        "scores": [end.tolist() for end in ends],
        "seconds": round(time.process_time() - start, 1),
    }  # fmt: skip


def compared(rows: Sequence[record.Row]) -> None:
    """Each method's gain over equal weights at its scale; Holm over the table."""
    base = {row["scale"]: row for row in rows if row["model"] == units.BASE}
    others, ps = [row for row in rows if row["model"] != units.BASE], []
    for row in others:
        gains = [float(g) for g in np.mean(base[row["scale"]]["scores"], 1)
                 - np.mean(row["scores"], 1)]  # fmt: skip
        found = estimate(gains, units.OVERLAP)
        row["gain"] = [found.mean, found.half]
        ps.append(paired_p(gains, [0.0] * len(gains), units.OVERLAP))
    for row, p in zip(others, holm(ps), strict=True):
        row["gain"].append(p)


def table_of(rows: Sequence[record.Row]) -> str:
    """All torques, the scaled one and the others, by method and scale; bold where p < .05."""
    scales = list(dict.fromkeys(row["scale"] for row in rows))
    head = ["method", *(f"loss x {scale:g}" for scale in scales)]
    lines = [head, ["---"] + ["---:"] * len(scales)]
    for title in METHODS:
        line = [title]
        for scale in scales:
            (row,) = (r for r in rows if (r["model"], r["scale"]) == (title, scale))
            left = np.mean(row["scores"], axis=0)
            mean = f"{left.mean():.1f}"
            if row.get("gain", [0, 0, 1])[2] < 0.05:
                mean = f"**{mean}**"
            line.append(f"{mean} ({left[0]:.1f} / {left[1:].mean():.1f})")
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    given = record.options(__doc__).parse_args()
    record.begin(given)
    scales, seeds = SCALES, units.SEEDS
    if given.quick:
        units.ROUNDS, units.RATES, units.TUNED_ON = 30, units.RATES[-1:], units.TUNED_ON[:1]
        scales, seeds = SCALES[::2], seeds[:2]
    path = given.out / "scales.json"
    about = record.about() | {
        "command": "python benchmarks/scales.py",
        "data": record.fingerprint("sarcos_inv_test.mat"),
        "settings": {
            "seeds": seeds, "tuned on": units.TUNED_ON, "rates": units.RATES,
            "rounds": units.ROUNDS, "overlap": units.OVERLAP, "scaled": SCALED,
        },
    }  # fmt: skip
    rows = []
    for scale in scales:
        for title in METHODS:
            rows.append(measured(title, scale, seeds))
            print(scale, title, rows[-1]["rate"], np.mean(rows[-1]["scores"]), flush=True)
    compared(rows)
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    path.with_suffix(".md").write_text(table_of(rows))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
