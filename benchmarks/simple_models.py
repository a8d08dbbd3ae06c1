"""Does joining beat simple models? Linear models, boosted trees and a network, alone and together.

    pip install scikit-learn
    FEDGRADNORM_DATA=... python benchmarks/simple_models.py   # simple_models.json and the tables

Every model trains on the same examples. Regularization, tree counts and learning rates are chosen
on the validation examples of seed 100, which is not among the reported seeds. Scores are means over
clients on test examples; each seed splits every client's examples again, or draws other training
texts where the test texts are given (FDU-MTL).

The last table leaves out one data set at a time: which heads would the others' results advise, and
which does validation choose?
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import record
import torch
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import MultinomialNB
from torch import nn

import fedgradnorm as fgn
from fedgradnorm.data import beijing, fdu_mtl, har, landmine, school
from fedgradnorm.experiments._statistics import estimate, holm, paired_p

TUNED_ON, SEEDS = 100, (0, 1, 2, 3, 4)
SHARES = {"test_share": 0.25, "validation_share": 0.2}
LINEAR, TREES, BAYES, RATES = (0.01, 0.1, 1.0), (20, 60), (0.03, 0.1, 0.3, 1.0), (1e-3, 1e-2)
WIDE = (0.1, 1.0, 10.0, 100.0)
"""For bags of words, whose rows have length 1."""
WORDS, PM25 = 4000, 100.0
"""Buckets that tokens are hashed to, and a round number near the spread of PM2.5."""
SPLITS = ("train", "validation", "test")
Split = tuple[Any, np.ndarray]
"""Inputs, an array or a sparse matrix, and labels."""
Clients = Sequence[fgn.Client]
Scores = Mapping[str, np.ndarray]
"""By split, a score per client; more is better. Of networks also the validation ``loss``."""


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


def reviews(seed: int, rows: int | None) -> list[fgn.Client]:
    """FDU-MTL's domains as bags of hashed words, with ``rows`` training texts each."""
    made = fdu_mtl.clients(words=WORDS, validation_share=0.2, seed=seed)
    return [client if rows is None else fewer(client, rows, seed) for client in made]


def stations(seed: int, rows: int) -> list[fgn.Client]:
    """Beijing's stations, all of them predicting PM2.5 from ``rows`` training hours."""
    made = beijing.clients(tasks=["pm25"], rows=5000, test_share=0.2, validation_share=0.16,
                           seed=seed)  # fmt: skip
    found = [fewer(client, rows, seed) for client in made]
    return [
        replace(
            client, **{n: (getattr(client, n)[0], getattr(client, n)[1] / PM25) for n in SPLITS}
        )
        for client in found
    ]


def fewer(client: fgn.Client, rows: int, seed: int) -> fgn.Client:
    """So many training examples, and a quarter as many for validation."""
    cut = {}
    for split, count in (("train", rows), ("validation", rows // 4)):
        x, y = getattr(client, split)
        at = np.random.default_rng([seed, *f"{client.name} {split}".encode()]).permutation(len(x))
        at = np.sort(at[:count])
        cut[split] = x[at], y[at]
    return replace(client, **cut)


@dataclass(frozen=True)
class Set:
    """Clients by seed, their metric, the models other than networks, and the file they are from.

    Targets are in multiples of ``unit``; scores are not. ``overlap`` is the size of the test split
    relative to all other examples of the pool that seeds split: with Nadeau and Bengio's
    correlation n_test / n_pool, it is the term to add to 1 / seeds.
    """

    make: Callable[[int], list[fgn.Client]]
    metric: str
    file: str
    simple: str = "boosted trees"
    overlap: float = 0.25 / 0.75
    unit: float = 1.0


SETS: dict[str, Set] = {
    "Landmine": Set(lambda seed: landmine.clients(seed=seed, **SHARES), "auc", "LandmineData.mat"),
    "School": Set(lambda seed: school.clients(seed=seed, **SHARES), "mae", "school.mat"),
    "Beijing PM2.5, 200 hours": Set(
        lambda seed: stations(seed, 200), "mae", "PRSA_Data_20130301-20170228.zip", overlap=0.25,
        unit=PM25,
    ),
    **{
        f"HAR, {rows} windows": Set(
            lambda seed, rows=rows: people(seed, rows), "accuracy", "har.npz"  # type: ignore[misc]
        )
        for rows in (20, 40, 80)
    },
    **{
        f"FDU-MTL, {rows or 'all'} texts": Set(
            lambda seed, rows=rows: reviews(seed, rows), "accuracy", "fdu_mtl.zip",  # type: ignore[misc]
            "naive Bayes", 400 / 1600,
        )
        for rows in (200, None)
    },
}  # fmt: skip
TABLES = (
    ("Landmine", "School", "Beijing PM2.5, 200 hours"),
    ("HAR, 20 windows", "HAR, 40 windows", "HAR, 80 windows"),
    ("FDU-MTL, 200 texts", "FDU-MTL, all texts"),
)
"""The data sets that the page shows side by side; one line is one collection."""


def arrays(client: fgn.Client, split: str) -> Split:
    """One split of one client, for scikit-learn; bags of words as a sparse matrix."""
    x, y = getattr(client, split)
    table = np.asarray(x)
    wide = table.shape[1] == WORDS
    return (
        sparse.csr_matrix(table) if wide else np.asarray(table, np.float64),
        np.asarray(y).reshape(len(y)),
    )


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
    if kind == "naive Bayes":
        return MultinomialNB(alpha=value)
    options = {"max_iter": int(value), "max_leaf_nodes": 8, "min_samples_leaf": 5}
    if metric == "mae":
        return HistGradientBoostingRegressor(loss="squared_error", **options)
    return HistGradientBoostingClassifier(**options)


def shares(fitted: Any, x: Any, metric: str, classes: int) -> np.ndarray:
    """Predictions; of classes that were not in training, the share is 0."""
    if metric == "mae":
        return fitted.predict(x)
    found = np.zeros((x.shape[0], classes))
    found[:, fitted.classes_.astype(int)] = fitted.predict_proba(x)
    return found


def fit(kind: str, metric: str, value: float, x: Any, y: np.ndarray, classes: int) -> Any:
    """A function from inputs to predictions; the only class there is, where there is one."""
    if metric != "mae" and len(set(y)) == 1:
        return lambda inputs: np.tile(np.eye(classes)[int(y[0])], (inputs.shape[0], 1))
    fitted = model(kind, metric, value).fit(x, y)
    return lambda inputs: shares(fitted, inputs, metric, classes)


def constant(clients: Clients, metric: str, value: float) -> Scores:  # noqa: ARG001
    """The mean target, or the class shares, of each client's training examples."""

    def answer(client: fgn.Client) -> Callable[[np.ndarray], np.ndarray]:
        _, y = arrays(client, "train")
        one = np.array(y.mean()) if metric == "mae" else np.bincount(
            y.astype(int), minlength=client.task.outputs) / len(y)  # fmt: skip
        return lambda x: np.broadcast_to(one, (x.shape[0], *one.shape))

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
        def marked(place: int, x: Any) -> Any:
            count = x.shape[0]
            one = np.full((count, 1), place) if kind == "boosted trees" else np.tile(
                np.eye(len(clients))[place], (count, 1))  # fmt: skip
            if isinstance(x, np.ndarray):
                return np.hstack([x, one])
            return sparse.hstack([x, sparse.csr_matrix(one)], format="csr")

        parts = [arrays(client, "train") for client in clients]
        every = [marked(place, x) for place, (x, _) in enumerate(parts)]
        dense = isinstance(every[0], np.ndarray)
        x = np.concatenate(every) if dense else sparse.vstack(every, format="csr")
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
            rounds=network.rounds,  # type: ignore[attr-defined]
            lr=value,
            callbacks=[fgn.Evaluation(every=20), fgn.KeepBest(), fgn.EarlyStopping(patience=5)],
            compute=fgn.Compute(device="cpu"),
            **how,
        )
        last = trained.history.groupby(["split", "client"], sort=False).last()[metric]
        sign = -1 if metric == "mae" else 1
        names = [client.name for client in clients]
        found = {n: sign * last[n].reindex(names).to_numpy() for n in ("validation", "test")}
        ends = trained.history[trained.history.split == "validation"].groupby("client").last()
        return {**found, "loss": ends.loss.to_numpy()}

    return run


network.rounds = 200  # type: ignore[attr-defined]


Model = tuple[Callable[[Clients, str, float], Scores], tuple[float, ...]]
VARIANTS: dict[str, dict[str, Any]] = {
    "network, personal heads": {},
    "network, one head": {"sharing": {"heads": "task"}},
    "network, one head with own bias": {"sharing": {"heads": "task", "head_own": "bias"}},
}
"""What heads of clients with one task may share."""
ALONE_NETWORK = "network, alone"


def models(chosen: Set) -> dict[str, Model]:
    """The models of a data set by name, with the values to choose from."""
    simple = chosen.simple
    values, linear = (TREES, LINEAR) if simple == "boosted trees" else (BAYES, WIDE)
    return {
        "constant": (constant, (0.0,)),
        "linear model, alone": (alone("linear"), linear),
        f"{simple}, alone": (alone(simple), values),
        ALONE_NETWORK: (network(method="local"), RATES),
        "linear model, pooled": (pooled("linear"), linear),
        f"{simple}, pooled": (pooled(simple), values),
        **{name: (network(method="fedrep", **how), RATES) for name, how in VARIANTS.items()},
        "network, personal heads, direct rule": (network(method="fedgradnorm-direct"), RATES),
    }


def measured(name: str, seeds: Sequence[int]) -> list[record.Row]:
    """The rows of one data set: every model's score, and what it adds to the best one alone."""
    chosen = SETS[name]
    rows: dict[str, record.Row] = {}
    clients = chosen.make(TUNED_ON)
    for title, (run, values) in models(chosen).items():
        start = time.process_time()
        found = {value: run(clients, chosen.metric, value) for value in values}
        by_value = {value: float(one["validation"].mean()) for value, one in found.items()}
        best = max(by_value, key=by_value.__getitem__)
        rows[title] = {
            "data": name, "metric": chosen.metric, "model": title, "value": best,
            "validation": by_value[best] * chosen.unit, "overlap": chosen.overlap,
            "scores": [], "seconds": time.process_time() - start,
        }  # fmt: skip
        if "loss" in found[best]:
            rows[title]["validation_loss"] = float(found[best]["loss"].mean())
    for seed in seeds:  # one at a time is in memory
        clients = chosen.make(seed)
        for title, (run, _) in models(chosen).items():
            row, start = rows[title], time.process_time()
            found = run(clients, chosen.metric, row["value"])["test"]
            row["scores"].append(float(found.mean()) * chosen.unit)
            row["seconds"] = round(row["seconds"] + time.process_time() - start, 1)
            print(f"{name}, seed {seed}: {title}: {row['scores'][-1]:.4g}", flush=True)
    return compared(list(rows.values()))


def recompared(rows: Sequence[record.Row]) -> list[record.Row]:
    """All rows, with gains and intervals as they are computed now."""
    found: list[record.Row] = []
    for name in dict.fromkeys(row["data"] for row in rows):
        own = [row | {"overlap": SETS[name].overlap} for row in rows if row["data"] == name]
        found += compared(own)
    return found


def compared(rows: list[record.Row]) -> list[record.Row]:
    """Rows with their gain over the best model alone: the best on the test examples, in hindsight.

    So the opponent of joining is a little too strong. Validation could not choose fairly: networks
    stop by the same examples.
    """
    by_name = {row["model"]: row for row in rows}
    candidates = [row for name, row in by_name.items() if name.endswith(", alone")]
    best = max(candidates, key=lambda row: np.mean(row["scores"]))
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


def tables_of(rows: Sequence[record.Row]) -> list[str]:
    """The tables of the page; advice needs two collections, one to leave out."""
    trained = {row["data"] for row in rows if row["model"] == ALONE_NETWORK}
    several = len({name.split(",")[0] for name in trained}) > 1
    own = [row for row in rows if row["data"] in trained]
    return [*page_tables(rows), *([advice_table(own)] if several else [])]


def page_tables(rows: Sequence[record.Row]) -> list[str]:
    """A table per line of TABLES, as far as its data sets were measured."""
    measured = {row["data"] for row in rows}
    kept = [[name for name in names if name in measured] for names in TABLES]
    return [page_table(rows, names) for names in kept if names]


def page_table(rows: Sequence[record.Row], sets: Sequence[str]) -> str:
    """A row per model, and for each data set its score and its gain over the best alone."""
    units = {row["data"]: "MAE" if row["metric"] == "mae" else row["metric"] for row in rows}
    units = {name: {"auc": "AUC"}.get(unit, unit) for name, unit in units.items()}
    head = ["model", *(part for s in sets for part in (f"{s}: {units[s]}", "gain"))]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for title in dict.fromkeys(row["model"] for row in rows if row["data"] in sets):
        line = [title]
        for name in sets:
            row = next((r for r in rows if (r["data"], r["model"]) == (name, title)), None)
            line += _cells(row) if row else ["", ""]
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


CANDIDATES = (ALONE_NETWORK, *VARIANTS)
STRATEGIES = {
    "always train alone": lambda rows, name: ALONE_NETWORK,  # noqa: ARG005
    **{
        f"always {title.removeprefix('network, ')}": lambda rows, name, title=title: title  # noqa: ARG005
        for title in VARIANTS
    },
    "the best on the other collections": lambda rows, name: advised(rows, name),
    "the best by validation": lambda rows, name: by_validation(rows, name),
    "the least validation loss (`try_heads`)": lambda rows, name: by_loss(rows, name),
}


def losses(rows: Sequence[record.Row], name: str) -> dict[str, float]:
    """How far each candidate is behind the best one on the test examples of a data set.

    In points; an error is in percent of the constant's, so that data sets can be averaged.
    """
    own = {row["model"]: row for row in rows if row["data"] == name}
    unit = 1.0
    if own["constant"]["metric"] == "mae":
        unit = abs(float(np.mean(own["constant"]["scores"])))
    means = {title: float(np.mean(own[title]["scores"])) for title in CANDIDATES}
    return {title: 100 * (max(means.values()) - mean) / unit for title, mean in means.items()}


def advised(rows: Sequence[record.Row], name: str) -> str:
    """The candidate that is least behind on all collections but this one, each counting once."""
    collections = {other: other.split(",")[0] for other in dict.fromkeys(r["data"] for r in rows)}
    by_collection: dict[str, list[dict[str, float]]] = {}
    for other, collection in collections.items():
        if collection != collections[name]:
            by_collection.setdefault(collection, []).append(losses(rows, other))
    return min(
        CANDIDATES,
        key=lambda title: np.mean(
            [np.mean([one[title] for one in found]) for found in by_collection.values()]
        ),
    )


def by_validation(rows: Sequence[record.Row], name: str) -> str:
    """The candidate with the best validation score on the seed that is not reported."""
    own = {row["model"]: row["validation"] for row in rows if row["data"] == name}
    return max(CANDIDATES, key=own.__getitem__)


def by_loss(rows: Sequence[record.Row], name: str) -> str:
    """The candidate with the least validation loss on that seed."""
    own = {row["model"]: row.get("validation_loss") for row in rows if row["data"] == name}
    return min(CANDIDATES, key=own.__getitem__)


def advice_table(rows: Sequence[record.Row]) -> str:
    """What each way of choosing the heads loses against the best choice in hindsight."""
    sets = list(dict.fromkeys(row["data"] for row in rows))
    lines = [["choice", "mean loss", "largest loss", "on"], ["---", "---:", "---:", "---"]]
    for title, choose in STRATEGIES.items():
        lost = {name: losses(rows, name)[choose(rows, name)] for name in sets}
        worst = max(lost, key=lost.__getitem__)
        mean = float(np.mean(list(lost.values())))
        lines.append([title, f"{mean:.1f}", f"{lost[worst]:.1f}", worst])
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
        network.rounds = 40  # type: ignore[attr-defined]
    names = [name for name in SETS if record.wanted(name, given)]
    order = {name: place for place, name in enumerate(SETS)}
    path, seeds = given.out / "simple_models.json", SEEDS[:1] if given.quick else SEEDS
    here = record.about()
    about = here | {
        "command": "python benchmarks/simple_models.py",
        "data": record.fingerprint(*dict.fromkeys(one.file for one in SETS.values())),
        "settings": {
            "seeds": seeds, "tuned on": TUNED_ON, "linear": LINEAR, "trees": TREES,
            "linear, words": WIDE, "naive Bayes": BAYES, "rates": RATES, "rounds": network.rounds,  # type: ignore[attr-defined]
            "words": WORDS, **SHARES,
        },
    }  # fmt: skip
    rows = [row for row in record.earlier(path, here, given) if row["data"] not in names]
    rows = recompared(rows)
    for name in names:
        rows = sorted([*rows, *measured(name, seeds)], key=lambda row: order[row["data"]])
        rows = recompared(rows)
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    path.with_suffix(".md").write_text("\n".join(tables_of(rows)))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
