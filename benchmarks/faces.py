"""Faces under a fair protocol: labels as they are or clean, heads at random or at the targets.

    FEDGRADNORM_DATA=... python benchmarks/faces.py --jobs 16 --device cuda    # faces.json, tables

Five clients with Table II's sizes and one task each. Every method has the same learning rates to
choose from, and the paper's rule two values of alpha. Choices are made by validation on a seed that
is not reported. Each client keeps its best round by validation loss (15 % of its rows), and is
scored on the official test faces. Three rules that look at generalization are tried with clean
labels; they are written below, as an example of weightings of your own.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar

import numpy as np
import record
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

import fedgradnorm as fgn
from fedgradnorm.data import mtfl
from fedgradnorm.experiments._statistics import estimate, holm, paired_p
from fedgradnorm.models import network1

TUNED_ON, SEEDS = (100,), (0, 1, 2, 3, 4)
RATES, ALPHAS = (3e-4, 1e-3, 3e-3), (0.004, 0.02)
EPOCHS, EVERY, VALIDATION = 100, 2, 0.15
TASKS = ("gender", "smile", "glasses", "pose", "landmark")
MINOR = ("gender", "smile", "pose")
LEVEL = 68.0
"""Mean accuracy of the minor tasks, in %, whose first epoch is compared. Glasses is left out:
nobody beats its majority class."""
SETTINGS = (("clean", "targets"), ("clean", "random"), ("as they are", "targets"),
            ("as they are", "random"))  # fmt: skip
BASE = "equal weights"


class Carried(fgn.GradNorm):
    """The direct rule with another number in the place of the loss ratio: p_i ~ carried_i / G_i."""

    starts: ClassVar[Mapping[str, float]] = {**fgn.GradNorm.starts, "carried": 1.0}

    def __init__(self) -> None:
        super().__init__(gamma=1.0, rule="direct")

    def weigh(self, signals: fgn.Signals) -> Tensor:
        return super().weigh(replace(signals, loss_ratio=self.rows["carried"]))


class Agreement(Carried):
    """carried_i: how far the gradients of two successive batches of a client agree (a cosine)."""

    needs = fgn.Needs.LOSS | fgn.Needs.NORM | fgn.Needs.GRADIENT
    capturable = False
    before: Tensor | None = None

    def weigh(self, signals: fgn.Signals) -> Tensor:
        now = signals.gradients
        if self.before is not None and now is not None:
            cosine = cosine_similarity(self.before, now, dim=1).double().clamp_min(0.01)
            self.rows["carried"].lerp_(cosine, 0.05)
        self.before = None if now is None else now.clone()
        return super().weigh(signals)


class Watch(fgn.Callback):
    """Gives each client's row of the weighting what the evaluation says about the client."""

    def __init__(self, carried: Callable[[dict, dict], float]) -> None:
        self.carried, self.first = carried, {}

    def on_evaluation(self, state: Any) -> None:
        losses: dict[str, dict[str, float]] = {}
        for row in state.evaluation:
            losses.setdefault(row["client"], {})[row["split"]] = row["loss"]
        for i, name in enumerate(state.weighting.clients):
            seen = self.first.setdefault(name, dict(losses[name]))
            state.weighting.rows["carried"][i] = self.carried(losses[name], seen)


def gap(now: dict[str, float], _: dict[str, float]) -> float:
    """The training loss over the validation loss: small for a task that is memorized."""
    return min(1.0, max(0.01, now["train"] / now["validation"]))


def progress(now: dict[str, float], best: dict[str, float]) -> float:
    """How much the validation loss fell below its best, relative to it; slowly forgotten."""
    fell = max(0.0, 1 - now["validation"] / best["validation"])
    best["validation"] = min(best["validation"], now["validation"])
    best["pace"] = 0.7 * best.get("pace", 0.1) + 0.3 * fell
    return max(0.005, best["pace"])


METHODS: dict[str, tuple[str, tuple[dict[str, float], ...]]] = {
    "equal weights": ("fedrep", ({},)),
    "1 / first loss": ("inverse-first-loss", ({},)),
    "FedGradNorm": ("fedgradnorm", tuple({"lr": alpha} for alpha in ALPHAS)),
    "direct rule": ("fedgradnorm-direct", ({},)),
    "equal norms": ("equal-norms", ({},)),
    "network, alone": ("local", ({},)),
}
MORE = {
    "excess risk": ("excess-mtl", ({"step": 0.01}, {"step": 0.1})),
    "agreement": ("agreement", ({},)),
    "generalization gap": ("gap", ({},)),
    "validation progress": ("progress", ({},)),
}
"""Rules that look at generalization, with clean labels and heads at the targets alone."""


@dataclass(frozen=True)
class Job:
    """One training."""

    labels: str
    heads: str
    model: str
    method: str
    rate: float
    options: tuple[tuple[str, float], ...]
    seed: int

    @property
    def choice(self) -> tuple[float, tuple[tuple[str, float], ...]]:
        return self.rate, self.options


@lru_cache(maxsize=4)
def clients(labels: str, seed: int) -> list[fgn.Client]:
    return mtfl.clients(
        allocation="imbalanced", validation_share=VALIDATION, seed=seed,
        drop_outside=labels == "clean",
    )  # fmt: skip


def train(job: Job, device: str, epochs: int) -> dict[str, Any]:
    """Validation losses and test scores, [evaluations, clients], and the seconds it took."""
    began, made = time.perf_counter(), clients(job.labels, job.seed)
    weighting: Any = dict(job.options) or None
    watching: list[fgn.Callback] = []
    method: str | None = job.method
    if job.method in ("agreement", "gap", "progress"):
        method, weighting = None, Agreement() if job.method == "agreement" else Carried()
        if job.method != "agreement":
            watching = [Watch(gap if job.method == "gap" else progress)]
    torch.manual_seed(job.seed)
    per_epoch = -(-max(len(client.train[1]) for client in made) // 64)
    run = fgn.train(
        network1(), made, method=method, weighting=weighting, epochs=epochs, lr=job.rate,
        seed=job.seed, local={"batch_size": 64}, sharing={"head_init": job.heads},
        callbacks=[fgn.Evaluation(every=EVERY * per_epoch), fgn.History(every=100), *watching],
        compute=fgn.Compute(device=device),
    )  # fmt: skip
    table = run.history
    scores = table.assign(
        score=table["mae"].where(table.client == "landmark", 100 * table["accuracy"])
    )
    found: dict[str, Any] = {"seconds": round(time.perf_counter() - began, 1)}
    for split, column in (("validation", "loss"), ("test", "score")):
        part = scores[scores.split == split].pivot(index="round", columns="client", values=column)
        found[split] = part[list(TASKS)].to_numpy()
        found["epochs"] = (part.index.to_numpy() / per_epoch).tolist()
    return found


def best_so_far(found: Mapping[str, Any]) -> np.ndarray:
    """Test scores at each client's best round by validation so far: [evaluations, clients]."""
    losses = np.where(np.isfinite(found["validation"]), found["validation"], np.inf)
    least = np.minimum.accumulate(losses, axis=0)
    at = np.maximum.accumulate(
        np.where(losses == least, np.arange(len(losses))[:, None], 0), axis=0
    )
    return np.take_along_axis(np.asarray(found["test"]), at, axis=0)


def quality(found: Mapping[str, Any]) -> float:
    """The mean over clients of the best validation loss relative to the first: lower is better."""
    losses = np.asarray(found["validation"])
    return float(np.mean(np.nanmin(losses, axis=0) / losses[0]))


def reached(curve: np.ndarray, epochs: Sequence[float]) -> float | None:
    """The first evaluated epoch at which the minor tasks' mean accuracy is at least LEVEL."""
    places = [TASKS.index(name) for name in MINOR]
    at = np.flatnonzero(np.mean(curve[:, places], axis=1) >= LEVEL)
    return float(epochs[at[0]]) if len(at) else None


def cells() -> Iterator[tuple[str, str, str, str, tuple[dict[str, float], ...]]]:
    """Labels, heads, model, method and its options, the most wanted first."""
    for labels, heads in SETTINGS:
        for model, (method, options) in METHODS.items():
            yield labels, heads, model, method, options
        if (labels, heads) == SETTINGS[0]:
            for model, (method, options) in MORE.items():
                yield labels, heads, model, method, options


def measure(
    jobs: int, device: str, epochs: int, seeds: Sequence[int], until: float,
    before: Sequence[record.Row], save: Callable[[list[record.Row]], None],
) -> None:  # fmt: skip
    """Tune every cell, then train it from the reported seeds; nothing starts after ``until``.

    Cells in ``before`` are tuned already; only their missing seeds are trained. ``save`` gets all
    rows whenever one has changed.
    """
    order = {cell[:3]: place for place, cell in enumerate(cells())}
    rows = {(row["labels"], row["heads"], row["model"]): row for row in before}
    waiting = [
        Job(labels, heads, model, method, rate, tuple(sorted(how.items())), seed)
        for labels, heads, model, method, options in cells()
        if (labels, heads, model) not in rows
        for how, rate, seed in product(options, RATES, TUNED_ON)
    ]
    waiting += [
        Job(*key, row["method"], row["rate"], tuple(sorted(row["options"].items())), seed)
        for key, row in rows.items()
        for seed in seeds
        if str(seed) not in row["scores"]
    ]
    tuning: dict[tuple[str, str, str], dict[Job, float]] = {}
    left = {key: sum((j.labels, j.heads, j.model) == key for j in waiting) for key in order}
    running: dict[Future[dict[str, Any]], Job] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=torch.set_num_threads,
                             initargs=(1,)) as pool:  # fmt: skip
        while waiting or running:
            if time.time() > until:
                waiting.clear()
            waiting.sort(key=lambda job: order[job.labels, job.heads, job.model])
            while waiting and len(running) < jobs:
                job = waiting.pop(0)
                running[pool.submit(train, job, device, epochs)] = job
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                job = running.pop(one)
                key = job.labels, job.heads, job.model
                try:
                    found = one.result()
                except fgn.TrainingError as error:  # a rate that diverges is a bad rate
                    print(f"{job}: {error}", flush=True)
                    found = None
                print(f"{job} {found and found['seconds']}", flush=True)
                if job.seed in TUNED_ON:
                    of = tuning.setdefault(key, {})
                    of[job] = quality(found) if found else float("inf")
                    left[key] -= 1
                    if not left[key]:
                        row = chosen(of)
                        rows[key] = row
                        pick = row.pop("pick")
                        waiting += [replace(pick, seed=seed) for seed in seeds]
                elif found:
                    curve = best_so_far(found)
                    rows[key]["scores"][str(job.seed)] = curve[-1].round(3).tolist()
                    rows[key]["epochs"][str(job.seed)] = reached(curve, found["epochs"])
                    rows[key]["curves"][str(job.seed)] = curve.round(2).tolist()
                    rows[key]["seconds"] += found["seconds"]
                    save([rows[cell] for cell in order if cell in rows])


def chosen(tried: Mapping[Job, float]) -> record.Row:
    """The choice with the best mean validation over the tuning seeds, and everything tried."""
    by_choice: dict[Any, list[float]] = {}
    for job, score in tried.items():
        by_choice.setdefault(job.choice, []).append(score)
    means = {choice: float(np.mean(scores)) for choice, scores in by_choice.items()}
    best = min(means, key=means.__getitem__)
    pick = next(job for job in tried if job.choice == best)
    return {
        "labels": pick.labels, "heads": pick.heads, "model": pick.model, "method": pick.method,
        "rate": pick.rate, "options": dict(pick.options),
        "tried": [{"rate": rate, **dict(how), "validation": round(score, 5)}
                  for (rate, how), score in means.items()],
        "scores": {}, "epochs": {}, "curves": {}, "seconds": 0.0, "pick": pick,
    }  # fmt: skip


SIMPLE = ("constant", "linear model, alone")
STRENGTHS = 10.0 ** np.arange(-5, 1)
"""Of the penalty of the linear models, chosen by validation for each client and seed."""


def simple_rows(labels: str, seeds: Sequence[int], jobs: int) -> list[record.Row]:
    """The constant prediction, and linear models on pixels; what no head and no rate concerns."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        found = list(pool.map(simple_scores, [labels] * len(seeds), seeds))
    return [
        {
            "labels": labels,
            "model": model,
            "scores": {str(seed): one[model] for seed, one in zip(seeds, found, strict=True)},
        }
        for model in SIMPLE
    ]


def simple_scores(labels: str, seed: int) -> dict[str, list[float]]:
    """Test scores by task of the simple models."""
    found: dict[str, list[float]] = {model: [] for model in SIMPLE}
    for client in sorted(clients(labels, seed), key=lambda one: TASKS.index(one.name)):
        (x, y), (vx, vy), (tx, ty) = (
            (np.asarray(x).reshape(len(x), -1).astype(np.float64) / 255, np.asarray(y))
            for x, y in (client.train, client.validation, client.test)
        )
        if client.name == "landmark":
            constant = np.broadcast_to(np.median(y, axis=0), ty.shape)
        else:
            constant = np.full(ty.shape, np.bincount(y.astype(int)).argmax())
        linear = best_linear(client.name == "landmark", (x, y), (vx, vy)).predict(tx)
        for model, said in zip(SIMPLE, (constant, linear), strict=True):
            if client.name == "landmark":
                found[model].append(round(float(np.abs(said - ty).mean()), 3))
            else:
                found[model].append(round(float(100 * (said == ty).mean()), 3))
    return found


def best_linear(numbers: bool, train: Any, validation: Any) -> Any:
    """Ridge or logistic regression on standardized pixels, its strength chosen by validation."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.metrics import log_loss, mean_squared_error
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def loss(model: Any) -> float:
        x, y = validation
        if numbers:
            return float(mean_squared_error(y, model.predict(x)))
        return float(log_loss(y, model.predict_proba(x), labels=model.classes_))

    models = [
        Ridge(alpha=1 / c) if numbers else LogisticRegression(C=c, max_iter=300) for c in STRENGTHS
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weak penalties need more steps, and are never chosen
        fitted = [make_pipeline(StandardScaler(), model).fit(*train) for model in models]
    return min(fitted, key=loss)


def compared(rows: Sequence[record.Row], overlap: float) -> None:
    """Each model's gain over equal weights by task, paired over seeds; Holm over a setting."""
    for row in rows:
        row.pop("gains", None)
    for labels, heads in SETTINGS:
        own = [r for r in rows if r["labels"] == labels and r.get("heads", heads) == heads]
        base = next((r for r in own if r["model"] == BASE), None)
        others = [
            r for r in own if r is not base and base and set(r["scores"]) >= set(base["scores"])
        ]
        ps = []
        for row in others:
            for place, task in enumerate(TASKS):
                sign = -1 if task == "landmark" else 1
                gains = [
                    sign * (row["scores"][s][place] - base["scores"][s][place])
                    for s in base["scores"]
                ]
                found = estimate(gains, overlap)
                row.setdefault("gains", {}).setdefault(heads, {})[task] = [found.mean, found.half]
                ps.append(paired_p(gains, [0.0] * len(gains), overlap))
        corrected = iter(holm(ps))
        for row in others:
            for task in TASKS:
                row["gains"][heads][task].append(next(corrected))


def score_table(rows: Sequence[record.Row], labels: str, heads: str) -> str:
    """Test scores by task, bold where they differ from equal weights; and the time to LEVEL."""
    own = [r for r in rows if r["labels"] == labels and r.get("heads", heads) == heads]
    lines = [["model", *(f"{task}, %" for task in TASKS[:-1]), "landmark, pixels", "epochs"]]
    lines.append(["---"] + ["---:"] * (len(TASKS) + 1))
    for row in own:
        means = np.mean(list(row["scores"].values()), axis=0)
        line = [row["model"]]
        for task, mean in zip(TASKS, means, strict=True):
            text = f"{mean:.2f}" if task == "landmark" else f"{mean:.1f}"
            p = row.get("gains", {}).get(heads, {}).get(task, [0, 0, 1])[2]
            line.append(f"**{text}**" if p < 0.05 else text)
        line.append(epochs_of(row["epochs"]) if "epochs" in row else "")
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def epochs_of(values: Mapping[str, float | None]) -> str:
    """The median over seeds; a seed that never got there counts as the longest."""
    median = float(np.median([float("inf") if one is None else one for one in values.values()]))
    return f"{median:.0f}" if np.isfinite(median) else f"> {EPOCHS}"


def course_table(rows: Sequence[record.Row], epochs: Sequence[int] = (4, 10, 20, 40, 100)) -> str:
    """Mean accuracy of the minor tasks, and landmark error, on the way; clean, at the targets."""
    own = [
        r for r in rows if (r["labels"], r.get("heads")) == SETTINGS[0] and r["model"] in METHODS
    ]
    lines = [["epoch", *(row["model"] for row in own)], ["---:"] + ["---:"] * len(own)]
    places = [TASKS.index(name) for name in MINOR]
    for epoch in epochs:
        line = [str(epoch)]
        for row in own:
            at = np.array([curve[epoch // EVERY] for curve in row["curves"].values()]).mean(axis=0)
            line.append(f"{at[places].mean():.1f}, {at[-1]:.2f}")
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables_of(rows: Sequence[record.Row]) -> list[str]:
    """The tables of the page."""
    return [score_table(rows, *setting) for setting in SETTINGS] + [course_table(rows)]


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing later")
    parser.add_argument("--tables", action="store_true", help="train nothing: tables of faces.json")
    given = parser.parse_args()
    record.begin(given)
    path, seeds, epochs = given.out / "faces.json", SEEDS, EPOCHS
    if given.quick:
        global RATES, ALPHAS
        RATES, seeds, epochs = RATES[1:2], SEEDS[:2], 2 * EVERY
    if not given.tables:
        began = time.time()
        before = json.loads(path.read_text()) if path.exists() and not given.quick else {"rows": []}
        about = record.about(gpu=given.device == "cuda") | {
            "command": f"python benchmarks/faces.py --jobs {given.jobs} --device {given.device}",
            "data": {labels: digest(labels) for labels in ("clean", "as they are")},
            "settings": {
                "seeds": seeds, "tuned on": TUNED_ON, "rates": RATES, "epochs": epochs,
                "evaluated every (epochs)": EVERY, "level": LEVEL, "validation": VALIDATION,
                "network": "network1", "batch size": 64,
            },
        }  # fmt: skip

        def save(rows: list[record.Row]) -> None:
            about["seconds"] = round(before.get("seconds", 0) + time.time() - began, 1)
            path.write_text(json.dumps({**about, "rows": rows}) + "\n")

        measure(
            given.jobs, given.device, epochs, seeds, began + given.seconds,
            [row for row in before["rows"] if "heads" in row], save,
        )  # fmt: skip
        return
    about = json.loads(path.read_text())
    rows = about.pop("rows")
    for labels in dict.fromkeys(row["labels"] for row in rows):
        if not any(row["labels"] == labels and row["model"] in SIMPLE for row in rows):
            rows = [*simple_rows(labels, about["settings"]["seeds"], given.jobs), *rows]
    sizes = [len(split[1]) for c in clients("clean", 0) for split in (c.train, c.test)]
    about["settings"]["overlap"] = sizes[1] / sum(sizes[::2])  # test faces per training face
    compared(rows, about["settings"]["overlap"])
    path.write_text(json.dumps({**about, "rows": rows}) + "\n")
    path.with_suffix(".md").write_text("\n".join(tables_of(rows)))
    print(path.with_suffix(".md").read_text())


def digest(labels: str) -> str:
    """The SHA-256 of the first seed's examples, in the order of the clients."""
    found = hashlib.sha256()
    for client in clients(labels, SEEDS[0]):
        for split in (client.train, client.validation, client.test):
            for part in split:
                found.update(np.ascontiguousarray(np.asarray(part)).tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    main()
