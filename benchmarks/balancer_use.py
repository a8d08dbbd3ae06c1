"""When balancing helps: against the plain sum, a better first head and a standardized target.

    python benchmarks/balancer_use.py          # a minute on 2 cores

A classification (the sign of a product) and a price around 500 share a network, in an ordinary
loop with Adam. Held-out accuracy of the class, and the price's absolute error as a share of that of
the mean price, early and at the end; means over seeds. Losses of raw prices are some 10,000 times
those of the class. Writes balancer_use.json and balancer_use.md to benchmarks/results, or to --out.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import record
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import fedgradnorm as fgn

EARLY, STEPS, TRAIN = 200, 1000, 3000
SEEDS = (0, 1, 2)
VARIANTS = {  # target, whether the head begins at the mean, whether losses are balanced
    "sum of losses": ("raw", False, False),
    "sum, head starts at the mean": ("raw", True, False),
    "sum, standardized target": ("standardized", True, False),
    "balancer": ("raw", False, True),
    "balancer, head starts at the mean": ("raw", True, True),
    "balancer, standardized target": ("standardized", True, True),
}
COLUMNS = {
    "variant": "losses",
    "early_accuracy": f"accuracy, {EARLY} steps",
    "accuracy": f"accuracy, {STEPS} steps",
    "early_error": f"price error, {EARLY} steps",
    "error": f"price error, {STEPS} steps",
}


def train(target: str, at_mean: bool, balanced: bool, seed: int, quick: bool) -> record.Row:
    """Scores on the way and at the end of one training."""
    torch.manual_seed(seed)
    x = torch.randn(4000, 20)
    kind = (x[:, 0] * x[:, 1] > 0).long()
    price = 500 + 100 * x[:, 2:3].abs() + 50 * x[:, 3:4]
    known = price[:TRAIN]
    shift, scale = (known.mean(), known.std()) if target == "standardized" else (0.0, 1.0)
    backbone = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    heads = nn.ModuleDict({"kind": nn.Linear(64, 2), "price": nn.Linear(64, 1)})
    if at_mean:
        nn.init.constant_(heads["price"].bias, float(((known - shift) / scale).mean()))
    weighting = fgn.GradNorm(rule="direct") if balanced else fgn.Equal()
    balance = fgn.Balancer(["kind", "price"], weighting=weighting, shared=backbone[2])
    parameters = [*backbone.parameters(), *heads.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    found: record.Row = {}
    for step in range(1, (2 if quick else STEPS) + 1):
        rows = torch.randint(0, TRAIN, (64,))
        features = backbone(x[rows])
        loss = balance(
            {
                "kind": cross_entropy(heads["kind"](features), kind[rows]),
                "price": mse_loss(heads["price"](features), (price[rows] - shift) / scale),
            }
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if quick or step in (EARLY, STEPS):
            with torch.no_grad():
                features = backbone(x[TRAIN:])
                right = heads["kind"](features).argmax(1) == kind[TRAIN:]
                off = heads["price"](features) * scale + shift - price[TRAIN:]
            name = "early_" if step == EARLY or (quick and step == 1) else ""
            found[f"{name}accuracy"] = right.float().mean().item()
            found[f"{name}error"] = float(
                off.abs().mean() / (price[TRAIN:] - known.mean()).abs().mean()
            )
    return found


def main() -> None:
    given = record.options(__doc__ or "").parse_args()
    record.begin(given)
    path: Path = given.out / "balancer_use.json"
    here = record.about()
    rows = []
    for variant, options in VARIANTS.items():
        if record.wanted(variant, given):
            seeds = [train(*options, seed, given.quick) for seed in SEEDS]
            means = {key: statistics.mean(one[key] for one in seeds) for key in seeds[0]}
            rows.append({"variant": variant, **means, "seeds": seeds})
    rows = record.merge(record.earlier(path, here, given), rows, "variant", list(VARIANTS))
    record.write(path, here, rows, COLUMNS)


if __name__ == "__main__":
    main()
