"""What a start of heads at the targets changes: three tasks, and two of them without the third.

    python benchmarks/head_init.py     # head_init.json and a table

Numbers around 1000, a class that 3 of 100 rows have, and one that half of them have, on one
network of 64 units. Results are on held-out rows, means over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import record
import torch
from torch import nn

import fedgradnorm as fgn

RULES = {
    "equal weights": fgn.Equal,
    "the paper's rule": fgn.GradNorm,
    "direct rule": lambda: fgn.GradNorm(rule="direct"),
}
RATES, STARTS, SEEDS = (2e-4, 1e-2), ("random", "auto"), (0, 1, 2)
MEASURES = {"far": ("mae", ".1f"), "rare": ("auroc", ".3f"), "even": ("accuracy", ".3f")}
COLUMNS = {
    "method": "method", "rate": "rate", "start": "start", "far": "far, error",
    "rare": "rare, AUROC", "even": "even, accuracy",
}  # fmt: skip


def clients(seed: int, names: Sequence[str], rows: int) -> list[fgn.Client]:
    """Some of the three; a sixth of the rows is held out."""
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(rows, 20)).astype("float32")
    far = 1000 + 50 * x[:, 0] + 10 * chance.normal(size=rows)
    score = x[:, 1] + 0.5 * chance.normal(size=rows)
    tasks = {
        "far": (fgn.regression(1), far),
        "rare": (fgn.classification(2, metrics=["auroc"]), score > np.quantile(score, 0.97)),
        "even": (fgn.classification(2), x[:, 2] > x[:, 3]),
    }
    cut, found = rows * 5 // 6, []
    for name in names:
        task, y = tasks[name]
        found.append(fgn.Client(name, task, (x[:cut], y[:cut]), test=(x[cut:], y[cut:])))
    return found


def trained(
    rule: str, rate: float, start: str, seed: int, names: Sequence[str], quick: bool
) -> dict[str, float]:
    """The result of each task."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
    table = fgn.train(
        network, clients(seed, names, 600 if quick else 2400),
        weighting=RULES[rule](),
        lr=rate,
        epochs=1 if quick else 20,
        sharing=fgn.Sharing(head_init=start),
        seed=seed,
        callbacks=[fgn.Evaluation(every=0)],
        compute=fgn.Compute(device="cpu"),
    ).summary()  # fmt: skip
    return {name: float(table[MEASURES[name][0]][name]) for name in names}


def main() -> None:
    given = record.options(__doc__).parse_args()
    record.begin(given)
    rows = []
    for names in (("far", "rare", "even"), ("rare", "even")):
        for rate in RATES[1:] if given.quick else RATES:
            for rule in list(RULES)[: 1 if given.quick else None]:
                for start in STARTS:
                    how = rule, rate, start
                    seeds = SEEDS[:1] if given.quick else SEEDS
                    each = [trained(*how, seed, names, given.quick) for seed in seeds]
                    means = {name: statistics.mean(one[name] for one in each) for name in names}
                    method = rule if "far" in names else f"{rule}, without `far`"
                    rows.append({"method": method, "rate": rate, "start": start, **means})
    record.write(given.out / "head_init.json", record.about(), rows, COLUMNS)


if __name__ == "__main__":
    main()
