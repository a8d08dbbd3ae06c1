"""Does joining beat simple models? Linear models, boosted trees and a network, alone and together.

    pip install scikit-learn
    FEDGRADNORM_DATA=... python benchmarks/simple_models.py   # simple_models.json and a table

Every model trains on the same examples. Regularization, tree counts and learning rates are chosen
on the validation examples of seed 100, which is not among the reported seeds. Scores are means over
clients on test examples; each seed splits every client's examples again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from torch import nn

import fedgradnorm as fgn
from fedgradnorm.data import har, landmine, school
from fedgradnorm.experiments._statistics import estimate, holm, paired_p

TUNED_ON, SEEDS = 100, (0, 1, 2, 3, 4)
SHARES = {"test_share": 0.25, "validation_share": 0.2}
LINEAR, TREES, RATES = (0.01, 0.1, 1.0), (20, 60), (1e-3, 1e-2)
SPLITS = ("train", "validation", "test")
Split = tuple[np.ndarray, np.ndarray]
Clients = Sequence[fgn.Client]
Scores = Mapping[str, np.ndarray]
"""By split, a score per client; more is better."""


def statistics_of(x: torch.Tensor) -> torch.Tensor:
    """HAR's windows of 9 x 128 as 54 numbers: level, spread, range and change of each channel."""
    step = (x[..., 1:] - x[..., :-1]).abs().mean(-1)
    energy = torch.fft.rfft(x, dim=-1).abs()[..., 1:9].mean(-1)
    return torch.cat([x.mean(-1), x.std(-1), x.amin(-1), x.amax(-1), step, energy], dim=-1)


def people(seed: int, rows: int) -> list[fgn.Client]:
    """HAR's people with ``rows`` training windows each."""
    raw = har.clients(seed=seed, rows=rows, **SHARES)
    splits = [{n: (statistics_of(getattr(c, n)[0]), getattr(c, n)[1]) for n in SPLITS} for c in raw]
    everybody = torch.cat([split["train"][0] for split in splits])
    mean, spread = everybody.mean(0), everybody.std(0)
    return [
        replace(client, **{n: ((x - mean) / spread, y) for n, (x, y) in split.items()})
        for client, split in zip(raw, splits, strict=True)
    ]


SETS: dict[str, tuple[Callable[[int], list[fgn.Client]], str]] = {
    "Landmine": (lambda seed: landmine.clients(seed=seed, **SHARES), "auc"),
    "HAR, 20 windows": (lambda seed: people(seed, 20), "accuracy"),
    "School": (lambda seed: school.clients(seed=seed, **SHARES), "mae"),
}


def arrays(client: fgn.Client, split: str) -> Split:
    """One split of one client, for scikit-learn."""
    x, y = getattr(client, split)
    return np.asarray(x, np.float64), np.asarray(y).reshape(len(y))


def judge(metric: str, y: np.ndarray, answer: np.ndarray) -> float:
    """The score of values, or of class shares; the AUC of a split with one class is a guess's."""
    if metric == "mae":
        return -float(np.abs(y - answer).mean())
    if metric == "auc":
        return float(roc_auc_score(y, answer[:, 1])) if len(set(y)) == 2 else 0.5
    return float((y == answer.argmax(1)).mean())


def model(kind: str, metric: str, value: float) -> Any:
    """An unfitted model of scikit-learn."""
    if kind == "linear":
        if metric == "mae":
            return Ridge(alpha=1 / value)
        return LogisticRegression(C=value, max_iter=200)
    options = {"max_iter": int(value), "max_leaf_nodes": 8, "min_samples_leaf": 5}
    if metric == "mae":
        return HistGradientBoostingRegressor(loss="squared_error", **options)
    return HistGradientBoostingClassifier(**options)


def shares(fitted: Any, x: np.ndarray, metric: str, classes: int) -> np.ndarray:
    """Predictions; of classes that were not in training, the share is 0."""
    if metric == "mae":
        return fitted.predict(x)
    found = np.zeros((len(x), classes))
    found[:, fitted.classes_.astype(int)] = fitted.predict_proba(x)
    return found


def fit(kind: str, metric: str, value: float, x: np.ndarray, y: np.ndarray, classes: int) -> Any:
    """A function from inputs to predictions; the only class there is, where there is one."""
    if metric != "mae" and len(set(y)) == 1:
        return lambda inputs: np.tile(np.eye(classes)[int(y[0])], (len(inputs), 1))
    fitted = model(kind, metric, value).fit(x, y)
    return lambda inputs: shares(fitted, inputs, metric, classes)


def constant(clients: Clients, metric: str, value: float) -> Scores:  # noqa: ARG001
    """The mean target, or the class shares, of each client's training examples."""

    def answer(client: fgn.Client) -> Callable[[np.ndarray], np.ndarray]:
        _, y = arrays(client, "train")
        one = np.array(y.mean()) if metric == "mae" else np.bincount(
            y.astype(int), minlength=client.task.outputs) / len(y)  # fmt: skip
        return lambda x: np.broadcast_to(one, (len(x), *one.shape))

    return scores(clients, metric, answer)


def alone(kind: str) -> Callable[[Clients, str, float], Scores]:
    """A model per client, on its own examples."""

    def run(clients: Clients, metric: str, value: float) -> Scores:
        return scores(clients, metric, lambda client: fit(
            kind, metric, value, *arrays(client, "train"), client.task.outputs))  # fmt: skip

    return run


def pooled(kind: str) -> Callable[[Clients, str, float], Scores]:
    """One model on everybody's examples, which are told apart by a column per client."""

    def run(clients: Clients, metric: str, value: float) -> Scores:
        def marked(place: int, x: np.ndarray) -> np.ndarray:
            one = np.full((len(x), 1), place) if kind == "trees" else np.tile(
                np.eye(len(clients))[place], (len(x), 1))  # fmt: skip
            return np.hstack([x, one])

        parts = [arrays(client, "train") for client in clients]
        x = np.concatenate([marked(place, x) for place, (x, _) in enumerate(parts)])
        y = np.concatenate([y for _, y in parts])
        predict = fit(kind, metric, value, x, y, clients[0].task.outputs)
        places = {client.name: place for place, client in enumerate(clients)}
        return scores(
            clients, metric, lambda client: lambda x: predict(marked(places[client.name], x))
        )

    return run


def scores(clients: Clients, metric: str, answer: Callable[[fgn.Client], Any]) -> Scores:
    """What each client's function is worth on its validation and its test examples."""
    found: dict[str, list[float]] = {"validation": [], "test": []}
    for client in clients:
        predict = answer(client)
        for split, values in found.items():
            x, y = arrays(client, split)
            values.append(judge(metric, y, predict(x)))
    return {split: np.array(values) for split, values in found.items()}


def network(**how: Any) -> Callable[[Clients, str, float], Scores]:
    """Our training: heads at the targets, the best round by validation."""

    def run(clients: Clients, metric: str, value: float) -> Scores:
        torch.manual_seed(0)
        inputs = clients[0].train[0].shape[1]
        trained = fgn.train(
            nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()),
            clients,
            rounds=run.rounds,  # type: ignore[attr-defined]
            lr=value,
            callbacks=[fgn.Evaluation(every=20), fgn.KeepBest(), fgn.EarlyStopping(patience=5)],
            compute=fgn.Compute(device="cpu"),
            **how,
        )
        last = trained.history.groupby(["split", "client"], sort=False).last()[metric]
        sign = -1 if metric == "mae" else 1
        names = [client.name for client in clients]
        return {n: sign * last[n].reindex(names).to_numpy() for n in ("validation", "test")}

    run.rounds = 200  # type: ignore[attr-defined]
    return run


MODELS: dict[str, tuple[Callable[[Clients, str, float], Scores], tuple[float, ...]]] = {
    "constant": (constant, (0.0,)),
    "linear model, alone": (alone("linear"), LINEAR),
    "boosted trees, alone": (alone("trees"), TREES),
    "network, alone": (network(method="local"), RATES),
    "linear model, pooled": (pooled("linear"), LINEAR),
    "boosted trees, pooled": (pooled("trees"), TREES),
    "network, personal heads, equal weights": (network(method="fedrep"), RATES),
    "network, personal heads, direct rule": (network(method="fedgradnorm-direct"), RATES),
    "network, one head, equal weights": (
        network(method="fedrep", sharing={"heads": "task"}), RATES,
    ),
    "network, one head with own bias, equal weights": (
        network(method="fedrep", sharing={"heads": "task", "head_own": "bias"}), RATES,
    ),
}  # fmt: skip
ALONE = ("linear model, alone", "boosted trees, alone", "network, alone")


def measured(name: str, seeds: Sequence[int]) -> list[record.Row]:
    """The rows of one data set: every model's score, and what it adds to the best one alone."""
    make, metric = SETS[name]
    tuning, tested = make(TUNED_ON), {seed: make(seed) for seed in seeds}
    sizes = [[len(getattr(client, s)[0]) for s in SPLITS] for client in tuning]
    train, validation, test = np.sum(sizes, axis=0)
    overlap = float(test / (train + validation))
    rows: dict[str, record.Row] = {}
    for title, (run, values) in MODELS.items():
        start = time.process_time()
        by_value = {v: float(run(tuning, metric, v)["validation"].mean()) for v in values}
        best = max(by_value, key=by_value.__getitem__)
        found = {seed: run(clients, metric, best)["test"] for seed, clients in tested.items()}
        rows[title] = {
            "data": name, "metric": metric, "model": title, "value": best,
            "validation": by_value[best], "overlap": overlap,
            "scores": [float(one.mean()) for one in found.values()],
            "seconds": round(time.process_time() - start, 1),
        }  # fmt: skip
        shown = f"{np.mean(rows[title]['scores']):.4g}, {rows[title]['seconds']} s"
        print(f"{name}: {title}: {shown}", flush=True)
    return compared(list(rows.values()))


def compared(rows: list[record.Row]) -> list[record.Row]:
    """Rows with their gain over the best model alone: the best on the test examples, in hindsight.

    So the opponent of joining is a little too strong. Validation could not choose fairly: networks
    stop by the same examples.
    """
    by_name = {row["model"]: row for row in rows}
    best = max((by_name[n] for n in ALONE if n in by_name), key=lambda row: np.mean(row["scores"]))
    raw = []
    for row in rows:
        factor = 1 if row["metric"] == "mae" else 100
        gains = factor * np.subtract(row["scores"], best["scores"])
        found = estimate(list(gains), row["overlap"])
        row |= {"best_alone": best["model"], "gain": found.mean, "half": found.half}
        raw.append(paired_p(list(gains), [0.0] * len(gains), row["overlap"]))
    others = [place for place, row in enumerate(rows) if row is not best]
    for place, p in zip(others, holm([raw[place] for place in others]), strict=True):
        rows[place]["p"] = p
    return rows


def page_table(rows: Sequence[record.Row]) -> str:
    """A row per model, and for each data set its score and its gain over the best alone."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    units = {row["data"]: "MAE" if row["metric"] == "mae" else row["metric"] for row in rows}
    units = {name: {"auc": "AUC"}.get(unit, unit) for name, unit in units.items()}
    head = ["model", *(part for s in sets for part in (f"{s}: {units[s]}", "gain"))]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for title in dict.fromkeys(row["model"] for row in rows):
        line = [title]
        for name in sets:
            row = next((r for r in rows if (r["data"], r["model"]) == (name, title)), None)
            line += _cells(row) if row else ["", ""]
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: record.Row) -> list[str]:
    mean = abs(float(np.mean(row["scores"])))
    digits = {"mae": f"{mean:.2f}", "auc": f"{mean:.3f}", "accuracy": f"{100 * mean:.1f} %"}
    if row["model"] == row["best_alone"]:
        return [digits[row["metric"]], "best alone"]
    gain = f"{row['gain']:+.2f} ± {row['half']:.2f}"
    return [digits[row["metric"]], f"**{gain}**" if row["p"] < 0.05 else gain]


def main() -> None:
    given = record.options(__doc__).parse_args()
    record.begin(given)
    if given.quick:
        for run, _ in MODELS.values():
            if hasattr(run, "rounds"):
                run.rounds = 40
    rows, path = [], given.out / "simple_models.json"
    for name in SETS:
        if record.wanted(name, given):
            rows += measured(name, SEEDS[:1] if given.quick else SEEDS)
            _write(path, rows)


def _write(path: Path, rows: Sequence[record.Row]) -> None:
    record.write(path, record.about(), rows, {"data": "data", "model": "model", "gain": "gain"})
    path.with_suffix(".md").write_text(page_table(rows))


if __name__ == "__main__":
    main()
