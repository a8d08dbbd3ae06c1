"""Where do weights matter when tasks have units? Seven torques of a robot arm, one client each.

    FEDGRADNORM_DATA=... python benchmarks/units.py     # units.json and the page's tables

The clients hold disjoint rows of SARCOS and predict one torque each, in its own unit or
standardized by its training rows, with heads that start at random or at the targets. The score is
the share of a torque's test variance that is left, in percent: 100 is the mean of the test targets.

Every method has the same learning rates to choose from, and rules with a rate of their own two
values of it. Choices are made by validation on seeds that are not reported: one for the final
score, and one for the rounds until ``LEVEL``. Each client keeps its best round by validation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import record
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from torch import nn

import fedgradnorm as fgn
from fedgradnorm.data import sarcos
from fedgradnorm.experiments._statistics import estimate, holm, paired_p

TUNED_ON, SEEDS = (100, 101), (0, 1, 2, 3, 4)
TEST, VALIDATION = 0.2, 0.04
BATCH = 64
OVERLAP = TEST / (1 - TEST)
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
ROUNDS, EVERY, LEVEL = 400, 10, 15.0
LARGE, SMALL = sarcos.JOINTS[:4], sarcos.JOINTS[4:]
SETTINGS = (("own units", "random"), ("own units", "targets"), ("standardized", "targets"))
"""Units, and where heads start; standardized targets have mean 0, which is where heads start."""
METHODS: dict[str, tuple[str, tuple[dict[str, float], ...]]] = {
    "equal weights": ("fedrep", ({},)),
    "1 / first loss": ("inverse-first-loss", ({},)),
    "uncertainty weighting": ("uw", ({"scale_lr": 0.01}, {"scale_lr": 0.05})),
    "FedGradNorm": ("fedgradnorm", ({"lr": 0.004}, {"lr": 0.02})),
    "direct rule": ("fedgradnorm-direct", ({},)),
    "equal norms": ("equal-norms", ({},)),
    "network, alone": ("local", ({},)),
}
SIMPLE = {
    "ridge, alone": lambda value: Ridge(alpha=value),
    "boosted trees, alone": lambda value: HistGradientBoostingRegressor(max_iter=int(value)),
}
SIMPLE_VALUES = {
    "ridge, alone": (0.1, 1.0, 10.0, 100.0),
    "boosted trees, alone": (50, 100, 200, 400),
}
BASE = "equal weights"
Clients = list[fgn.Client]
Choice = tuple[float, dict[str, float]]


def clients(seed: int, units: str) -> Clients:
    """Seven clients with rows of their own; a deviation is that of the client's training rows."""
    made = sarcos.clients(
        inputs="disjoint", test_share=TEST, validation_share=VALIDATION, seed=seed
    )
    if units == "own units":
        return made
    found = []
    for client in made:
        y = torch.as_tensor(client.train[1])
        mean, spread = y.mean(), y.std()
        splits = {s: getattr(client, s) for s in ("train", "validation", "test")}
        found.append(
            replace(client, **{s: (x, (torch.as_tensor(t) - mean) / spread)
                               for s, (x, t) in splits.items()})
        )  # fmt: skip
    return found


def variance(client: fgn.Client, split: str) -> float:
    """The variance of a split's targets."""
    return float(np.asarray(getattr(client, split)[1], np.float64).var())


def curves(made: Clients, method: str, heads: str, choice: Choice) -> dict[str, np.ndarray]:
    """Unexplained variance by split, [evaluations, clients], in percent."""
    rate, options = choice
    torch.manual_seed(0)
    run = fgn.train(
        nn.Sequential(nn.Linear(21, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
        made,
        method=method,
        weighting=options or None,
        rounds=ROUNDS,
        lr=rate,
        local={"batch_size": BATCH},
        sharing={"head_init": heads},
        callbacks=[fgn.Evaluation(every=EVERY)],
        compute=fgn.Compute(device="cpu"),
    )
    found = {}
    for split in ("validation", "test"):
        table = run.history[run.history.split == split].pivot(
            index="round", columns="client", values="loss"
        )
        scale = np.array([variance(client, split) for client in made])
        found[split] = 100 * table[[client.name for client in made]].to_numpy() / scale
    return found


def kept(found: Mapping[str, np.ndarray]) -> np.ndarray:
    """Test scores, with each client's best round by validation so far: [evaluations, clients]."""
    validation = np.where(np.isfinite(found["validation"]), found["validation"], np.inf)
    rows = np.arange(len(validation))[:, None]
    least = np.minimum.accumulate(validation, axis=0)
    best = np.maximum.accumulate(np.where(validation == least, rows, 0), axis=0)
    return np.take_along_axis(found["test"], best, axis=0)


def reached(curve: np.ndarray) -> float:
    """The first evaluated round whose mean over clients is at most LEVEL; infinite if none is."""
    at = np.flatnonzero(np.nanmean(curve, axis=1) <= LEVEL)
    return float(at[0] * EVERY + EVERY) if len(at) else float("inf")


def choices(options: Sequence[dict[str, float]]) -> Iterator[Choice]:
    yield from product(RATES, options)


def network_rows(units: str, heads: str, seeds: Sequence[int]) -> list[record.Row]:
    """Every method in one setting."""
    tuning = [clients(seed, units) for seed in TUNED_ON]
    tested = {seed: clients(seed, units) for seed in seeds}
    rows = []
    for title, (method, options) in METHODS.items():
        start = time.process_time()
        tried: list[tuple[Choice, float, float]] = []
        for choice in choices(options):
            found = [curves(made, method, heads, choice)["validation"] for made in tuning]
            score = float(np.mean([np.nanmin(one, axis=0).mean() for one in found]))
            tried.append((choice, score, float(np.mean([reached(one) for one in found]))))
        final = min(tried, key=lambda one: one[1])
        soon = min(tried, key=lambda one: (one[2], one[1]))
        ends = {seed: kept(curves(made, method, heads, final[0])) for seed, made in tested.items()}
        if soon[0] == final[0]:
            ways = ends
        else:
            ways = {
                seed: kept(curves(made, method, heads, soon[0])) for seed, made in tested.items()
            }
        rows.append(
            {
                "units": units, "heads": heads, "model": title, "method": method,
                "rate": final[0][0], **{f"weighting.{k}": v for k, v in final[0][1].items()},
                "rate for time": soon[0][0],
                **{f"weighting.{k} for time": v for k, v in soon[0][1].items()},
                "validation": final[1],
                "scores": [curve[-1].tolist() for curve in ends.values()],
                "rounds": [
                    r if np.isfinite(r := reached(curve)) else None for curve in ways.values()
                ],
                "seconds": round(time.process_time() - start, 1),
            }
        )  # fmt: skip
        told(rows[-1])
    return rows


def simple_rows(seeds: Sequence[int]) -> list[record.Row]:
    """Models that no unit and no head concerns."""

    def left(client: fgn.Client, split: str, predict: Any) -> float:
        x, y = (np.asarray(part, np.float64) for part in getattr(client, split))
        return float(100 * np.mean((y.ravel() - predict(x)) ** 2) / y.var())

    def fitted(client: fgn.Client, make: Any) -> Any:
        x, y = (np.asarray(part, np.float64) for part in client.train)
        return make.fit(x, y.ravel()).predict

    tuning = [clients(seed, "own units") for seed in TUNED_ON]
    tested = [clients(seed, "own units") for seed in seeds]
    rows: list[record.Row] = [{"model": "constant", "scores": [
        [left(c, "test", lambda x, c=c: np.full(len(x), float(np.mean(np.asarray(c.train[1])))))
         for c in made] for made in tested]}]  # fmt: skip
    for title, make in SIMPLE.items():
        by_value = {
            value: float(np.mean([left(c, "validation", fitted(c, make(value)))
                                  for made in tuning for c in made]))
            for value in SIMPLE_VALUES[title]
        }  # fmt: skip
        best = min(by_value, key=by_value.__getitem__)
        scores = [[left(c, "test", fitted(c, make(best))) for c in made] for made in tested]
        rows.append({"model": title, "value": best, "scores": scores})
        told(rows[-1])
    return rows


def told(row: record.Row) -> None:
    mean = float(np.mean(row["scores"]))
    where = f"{row.get('units', '')} {row.get('heads', '')} {row['model']}".strip()
    print(f"{where}: {mean:.2f} %, rounds {row.get('rounds')}", flush=True)


def compared(rows: Sequence[record.Row]) -> None:
    """Each model's gain over equal weights in the same setting; Holm over a setting's models."""
    simple = [row for row in rows if "units" not in row]
    for row in rows:
        row.pop("gains", None)
    for units, heads in SETTINGS:
        own = [r for r in rows if (r.get("units"), r.get("heads")) == (units, heads)]
        base = next((r for r in own if r["model"] == BASE), None)
        if base is None:
            continue
        others = [r for r in [*own, *simple] if r is not base]
        ps = []
        for row in others:
            gains = [float(g) for g in np.mean(base["scores"], 1) - np.mean(row["scores"], 1)]
            found = estimate(gains, OVERLAP)
            row.setdefault("gains", {})[f"{units}, {heads}"] = [found.mean, found.half]
            ps.append(paired_p(gains, [0.0] * len(gains), OVERLAP))
        for row, p in zip(others, holm(ps), strict=True):
            row["gains"][f"{units}, {heads}"].append(p)


def tables_of(rows: Sequence[record.Row]) -> list[str]:
    """The tables of the page, with the settings that were measured."""
    found = {(row.get("units"), row.get("heads")) for row in rows}
    settings = [one for one in SETTINGS if one in found]
    return [score_table(rows, settings), parts_table(rows, settings)]


Settings = Sequence[tuple[str, str]]


def score_table(rows: Sequence[record.Row], settings: Settings) -> str:
    """Final scores: a row per model, and in each setting its score and its gain."""
    head = ["model", *(f"{units}, heads {at(heads)}" for units, heads in settings)]
    lines = [head, ["---"] + ["---:"] * len(settings)]
    for title in dict.fromkeys(row["model"] for row in rows):
        line = [title]
        for units, heads in settings:
            if (row := of(rows, title, units, heads)) is None:
                line.append("")
                continue
            mean = f"{np.mean(row['scores']):.1f}"
            gain = row.get("gains", {}).get(f"{units}, {heads}")
            if gain:
                shown = f"{gain[0]:+.1f} ± {gain[1]:.1f}"
                mean += f" (**{shown}**)" if gain[2] < 0.05 else f" ({shown})"
            line.append(mean)
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def parts_table(rows: Sequence[record.Row], settings: Settings) -> str:
    """What is left of large and of small torques, and the rounds until LEVEL."""
    head = ["method", *(f"{units}, heads {at(heads)}" for units, heads in settings)]
    lines = [head, ["---"] + ["---:"] * len(settings)]
    for title in METHODS:
        line = [title]
        for units, heads in settings:
            if (row := of(rows, title, units, heads)) is None:
                line.append("")
                continue
            scores = np.mean(row["scores"], axis=0)
            parts = f"{scores[: len(LARGE)].mean():.1f} / {scores[len(LARGE) :].mean():.1f}"
            line.append(f"{parts}; {rounds_of(row['rounds'])}")
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rounds_of(values: Sequence[float | None]) -> str:
    """The median over seeds; a seed that never got there counts as the longest."""
    median = float(np.median([float("inf") if one is None else one for one in values]))
    return f"{median:.0f}" if np.isfinite(median) else f"> {ROUNDS}"


def at(heads: str) -> str:
    return "at random" if heads == "random" else "at the targets"


def of(rows: Sequence[record.Row], title: str, units: str, heads: str) -> record.Row | None:
    """The row of a model in a setting, or the one that serves all settings; None if not run."""
    wanted = (title, units, heads)
    return next(
        (row for row in rows
         if (row["model"], row.get("units", units), row.get("heads", heads)) == wanted), None
    )  # fmt: skip


def main() -> None:
    given = record.options(__doc__).parse_args()
    record.begin(given)
    global ROUNDS, RATES, TUNED_ON
    if given.quick:
        ROUNDS, RATES, TUNED_ON = 30, RATES[-1:], TUNED_ON[:1]
    seeds, path, here = (
        SEEDS[:2] if given.quick else SEEDS,
        given.out / "units.json",
        record.about(),
    )
    about = here | {
        "command": "python benchmarks/units.py",
        "data": record.fingerprint("sarcos_inv_test.mat"),
        "settings": {
            "seeds": seeds, "tuned on": TUNED_ON, "rates": RATES, "rounds": ROUNDS,
            "evaluated every": EVERY, "level": LEVEL, "test": TEST, "validation": VALIDATION,
            "overlap": OVERLAP, "network": "21-64-64-1, ReLU", "batch size": BATCH,
        },
    }  # fmt: skip
    rows = record.earlier(path, here, given) or simple_rows(seeds)
    for units, heads in SETTINGS:
        if record.wanted(f"{units}, {heads}", given):
            rows = [r for r in rows if (r.get("units"), r.get("heads")) != (units, heads)]
            rows += network_rows(units, heads, seeds)
            path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    compared(rows)
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    path.with_suffix(".md").write_text("\n".join(tables_of(rows)))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
