"""The one reader of run folders: manifest, tables and config, and what is wrong with any of them.

``load`` takes the first fault as an error. Reports read a :class:`StoredRun`, which has whatever is
readable and names the rest: a page that shows nineteen runs and names the twentieth's fault is
worth more than an error.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._round.reports import KEYS
from fedgradnorm._runs.csv_table import Row, checksum_of, columns_of, salvaged
from fedgradnorm._runs.files import check_file, present, read_file
from fedgradnorm._runs.history import metric_columns
from fedgradnorm._runs.layout import CONFIG, MANIFEST, METRICS, SPREAD
from fedgradnorm._runs.manifest import kept_words, read_manifest
from fedgradnorm._runs.spread import COLUMNS, MANY, SHARES, groups_of, spread_rows
from fedgradnorm._toml import read_toml
from fedgradnorm.tasks._named_metrics import MAIN_METRICS, higher_is_better

UNKNOWN_SEED = -1
_FILES = (MANIFEST, CONFIG, METRICS)
_TABLES = {METRICS: KEYS, SPREAD: COLUMNS}
"""The tables of a run, and the columns in which no row has a gap."""

SYNTHETIC = "Synthetic data"


@dataclass
class Contents:
    """A run folder's manifest and tables; ``faults`` are in words that name the file."""

    manifest: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)


def read_contents(folder: Path) -> Contents:
    """Everything that can be read, and what is wrong with the rest."""
    found = Contents()
    if present(folder / MANIFEST):
        try:
            found.manifest = read_manifest(folder)
        except RunFolderError as error:
            found.faults.append(str(error))
    else:
        found.faults.append(f"{MANIFEST} is missing: settings and provenance are unknown")
    for name in _TABLES:
        found.rows[name] = _rows(folder / name, found)
    return found


def _rows(path: Path, found: Contents) -> list[Row]:
    """The rows of a table that can be used; a fault for the others."""
    if not present(path):
        if path.name == METRICS:
            found.faults.append(f"{METRICS} is missing: there are no curves")
        return []
    try:
        data = read_file(path)
        rows, damage = salvaged(path, data)
    except RunFolderError as error:
        data, rows, damage = b"", [], str(error)
    whole = [row for row in rows if all(row.get(key) is not None for key in _TABLES[path.name])]
    if len(whole) < len(rows) and not damage:
        damage = f"{path} is damaged: {len(rows) - len(whole)} of its rows are incomplete"
    known = found.manifest.get("tables", {}).get(path.name)
    if known is not None and known != checksum_of(data) and not damage:
        damage = f"{path} is damaged: its rows are not those that {MANIFEST} knows"
    if damage:
        found.faults.append(damage)
    elif path.name == METRICS:
        found.columns = columns_of(data)
    return whole


@dataclass(frozen=True)
class Judged:
    """The metric that a client's task names, and the scores of its constant baseline by metric.

    The constant baseline always predicts the majority class, or the mean.
    """

    metric: str | None = None
    constant: Mapping[str, float] = field(default_factory=dict)

    def choose(self, have: Container[str]) -> str:
        """The metric to show, of those that there are."""
        named = (self.metric,) if self.metric else ()
        return next((name for name in (*named, *MAIN_METRICS) if name in have), "loss")


NOT_JUDGED = Judged()


def judged(clients: Mapping[str, Any]) -> dict[str, Judged]:
    return {n: Judged(info.get("metric"), info.get("baseline", {})) for n, info in clients.items()}


@dataclass(frozen=True)
class StoredRun:
    """One run: its history, what is known about it, and what is not in order.

    Losses in ``rows`` are freed of the factor they were given (``loss_scale``), here and nowhere
    else, so that no reader can forget it; ``scaled`` says that there was one. ``spread`` has the
    quantiles over clients where the run recorded them. Where ``pooled`` is not empty, ``rows`` are
    those of quantiles, and it says how each is judged; see :func:`pooled`.
    """

    name: str
    method: str
    seed: int
    rows: list[Row]
    manifest: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    spread: list[Row] = field(default_factory=list)
    pooled: Mapping[str, Judged] = field(default_factory=dict)
    scaled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        scales = {n: info.get("loss_scale", 1.0) for n, info in self.part("clients").items()}
        if any(scale != 1.0 for scale in scales.values()):
            freed = [
                {**row, "loss": row["loss"] / scales.get(row["client"], 1.0)}
                if "loss" in row
                else row
                for row in self.rows
            ]
            object.__setattr__(self, "rows", freed)
            object.__setattr__(self, "spread", freed_spread(self.spread, self.groups, scales))
            object.__setattr__(self, "scaled", True)

    @property
    def clients(self) -> list[str]:
        """The names of the clients in its history, in their order."""
        return list(dict.fromkeys(row["client"] for row in self.rows))

    @property
    def judged(self) -> dict[str, Judged]:
        return dict(self.pooled) if self.pooled else judged(self.part("clients"))

    @property
    def names(self) -> list[str]:
        """The names of all clients, also of those whose rows were not kept."""
        return list(self.part("clients")) or self.clients

    @cached_property
    def prints(self) -> dict[str, str | None]:
        """The fingerprint of each client's rows, where it is known."""
        return {n: info.get("fingerprint") for n, info in self.part("clients").items()}

    @property
    def groups(self) -> dict[str, str]:
        """What each client is told apart by where clients are many: its task, or the kind of it."""
        known = self.part("clients")
        return groups_of({name: known.get(name, {}) for name in self.names})

    @property
    def finished(self) -> bool:
        """Whether the run says that it came to its end."""
        return self.manifest.get("finished") is True

    @property
    def stopped_early(self) -> bool:
        """Whether it ended before its last round because its validation losses told it to."""
        return self.finished and self.manifest.get("stopped_early") is True

    @property
    def diverged(self) -> list[str]:
        """The clients that it ended with in divergence."""
        return list(self.manifest.get("diverged", ()))

    @property
    def kept(self) -> str:
        return kept_words(self.manifest)

    @property
    def last_round(self) -> int:
        """How far it got; -1 where nothing was recorded."""
        return int(self.rows[-1]["round"]) if self.rows else -1

    @property
    def planned(self) -> int | None:
        """How many rounds it was to take, where that is known."""
        return self.manifest.get("rounds")

    def part(self, name: str) -> dict[str, Any]:
        """A section of run.json or the config; empty where there is none."""
        found = self.manifest.get(name, self.config.get(name))
        return found if isinstance(found, dict) else {}


def freed_spread(
    rows: list[Row], groups: Mapping[str, str], scales: Mapping[str, float]
) -> list[Row]:
    """Quantiles of losses freed of the factor of their group; of several factors, not at all."""
    factors: dict[str, set[float]] = {}
    for name, group in groups.items():
        factors.setdefault(group, set()).add(scales.get(name, 1.0))
    numbers = ("mean", *SHARES)
    found = []
    for row in rows:
        mine = factors.get(row["task"], {1.0})
        if row["quantity"] != "loss":
            found.append(row)
        elif len(mine) == 1:
            factor = next(iter(mine))
            found.append({**row, **{column: row[column] / factor for column in numbers}})
    return found


def collect(places: Sequence[Path]) -> tuple[list[StoredRun], list[str]]:
    """The runs at ``places``, in the order they were started, and what was looked for in vain."""
    folders: list[Path] = []
    missing = []
    for place in places:
        present(place)  # an error of ours for a name that no file can have
        found = _folders(place)
        folders += found
        if not found:
            missing.append(f"{place} is no run folder and holds none: no {MANIFEST} there")
    if not folders:
        raise RunFolderError("; ".join(missing) or "no run folders were given")
    runs = [read_run(folder) for folder in dict.fromkeys(folders)]
    return runs, missing


def _folders(place: Path) -> list[Path]:
    """The folder itself, or the runs in it, or the runs in the folders in it."""
    if _is_run(place):
        return [place]
    for pattern in ("*", "*/*"):
        inside = [path for path in place.glob(pattern) if _is_run(path)]
        if inside:
            return sorted(inside, key=_started)
    return []


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FILES)


def _started(folder: Path) -> tuple[str, str]:
    try:
        return str(json.loads(read_file(folder / MANIFEST))["started"]), str(folder)
    except (RunFolderError, ValueError, RecursionError, KeyError, TypeError):
        return "~", str(folder)  # after every date


def read_run(folder: Path) -> StoredRun:
    found = read_contents(folder)
    problems = [_inside(folder, fault) for fault in found.faults]
    # A client's own result has no weight.
    shown_columns = {"loss", "weight"}
    rows = [r for r in found.rows[METRICS] if r["split"] == "batch" or shown_columns <= set(r)]
    if (lost := len(found.rows[METRICS]) - len(rows)) and not problems:
        problems.append(f"{METRICS} is damaged: {lost} of its rows are incomplete")
    if rows:
        shown = f"; shown up to round {rows[-1]['round']}"
        problems = [text + shown * text.startswith(METRICS) for text in problems]
    if not rows and not any(METRICS in problem for problem in problems):
        problems.append("no round was recorded")
    config: dict[str, Any] = {}
    if present(folder / CONFIG):  # a run made from Python has none
        try:
            check_file(folder / CONFIG)
            config = read_toml(folder / CONFIG)
        except (ConfigError, RunFolderError) as error:
            problems.append(f"{CONFIG} is damaged: {error}")
    more = {"problems": tuple(problems), "spread": found.rows[SPREAD]}
    return stored_run(folder, found.manifest, config, rows, **more)


def stored_run(
    folder: Path, manifest: dict[str, Any], config: dict[str, Any], rows: list[Row], **more: Any
) -> StoredRun:
    """A run with the name of its folder, and the method and seed that its files name."""
    name, weighting = folder.resolve().name, manifest.get("weighting", {})
    words = " ".join(str(weighting[key]) for key in ("name", "rule") if weighting.get(key))
    seed = config.get("seed", manifest.get("settings", {}).get("seed"))
    seed = seed if isinstance(seed, int) else UNKNOWN_SEED
    method = str(config.get("method") or words or name)
    return StoredRun(name, method, seed, rows, manifest, config, **more)


def _inside(folder: Path, message: object) -> str:
    """A message about a file in ``folder``, without the way there: the page may travel."""
    return str(message).replace(f"{folder}/", "").replace(f"{folder}", folder.name)


def made_by_program(data: Mapping[str, Any]) -> str:
    """What a config's data table generates, in words; nothing where it reads real data.

    >>> made_by_program({"source": "faces"}), made_by_program({"source": "mtfl"})
    ('drawn faces, not photographs', '')
    """
    if data.get("source") == "radcom" and not data.get("path"):
        return "generated signals, not RadComDynamic's"
    return "drawn faces, not photographs" if data.get("source") == "faces" else ""


def synthetic(runs: Iterable[StoredRun]) -> str:
    """``Synthetic data: ...`` where any of the runs is on such data; else nothing."""
    tables = (run.config.get("data") for run in runs)
    made = dict.fromkeys(made_by_program(t) for t in tables if isinstance(t, Mapping))
    words = ", ".join(filter(None, made))
    return f"{SYNTHETIC}: {words}" if words else ""


MEDIAN, BEST, WORSE, WORST = "median", "best tenth", "worst tenth", "worst"
LINES = (MEDIAN, BEST, WORSE, WORST)
_LOWER = {MEDIAN: "median", BEST: "p10", WORSE: "p90", WORST: "max"}
_HIGHER = {MEDIAN: "median", BEST: "p90", WORSE: "p10", WORST: "min"}


def is_many(run: StoredRun) -> bool:
    """Whether a run has more clients than are shown one by one."""
    return len(run.names) > MANY


def pooled_runs(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The same runs; those of many clients in the lines of their tasks."""
    return [pooled(run) if is_many(run) else run for run in runs]


def line_name(task: str, line: str) -> str:
    """What a line of a task is called where a client's name would stand.

    >>> line_name("age", MEDIAN)
    'age (median)'
    """
    return f"{task} ({line})"


def around(run: StoredRun) -> dict[str, tuple[str, str]]:
    """For each median of a pooled run the lines of the best and of the worst tenth."""
    if not run.pooled:
        return {}
    ends = {t: (line_name(t, BEST), line_name(t, WORSE)) for t in run.groups.values()}
    return {line_name(task, MEDIAN): both for task, both in ends.items()}


def pooled(run: StoredRun) -> StoredRun:
    """A run of many clients, whose rows are quantiles over the clients of each task.

    Tables, tests and curves are made from a run's rows, one line for each client, and nobody reads
    so many. Here each task has its median, both tenths and the worst. "The worst tenth" is the
    value that nine of ten clients reach: the 90 % quantile of a loss, the 10 % quantile of an
    accuracy.
    """
    groups = run.groups
    found = run.spread or spread_rows(run.rows, groups, metric_columns(run.rows))
    judged = {
        line_name(task, line): by for task, by in _judged(run, groups).items() for line in LINES
    }
    rows = list(_lines(found))
    if rows and (sent := {row["client"]: row["bytes"] for row in run.rows if "bytes" in row}):
        rows[-1]["bytes"] = sum(sent.values())
    return replace(run, rows=rows, pooled=judged, spread=[])


def _lines(spread: Iterable[Row]) -> Iterable[Row]:
    """Rows of a history, a line of each task in the place of a client."""
    made: dict[tuple[int, float, str, str], dict[str, Row]] = {}
    for row in spread:
        place = (row["round"], row["epoch"], row["split"], row["task"])
        made.setdefault(place, {})[row["quantity"]] = row
    for (number, epoch, split, task), quantities in made.items():
        if split != "batch" and "loss" not in quantities:
            continue
        for line in LINES:
            values = {name: row[_column(name, line)] for name, row in quantities.items()}
            if split != "batch" and line != MEDIAN:
                values["weight"] = float("nan")  # who does worst has no special weight
            where = {"round": number, "epoch": epoch, "client": line_name(task, line)}
            yield {**where, "split": split, **values}


def _column(quantity: str, line: str) -> str:
    return (_HIGHER if higher_is_better(quantity) else _LOWER)[line]


def _judged(run: StoredRun, groups: Mapping[str, str]) -> dict[str, Judged]:
    """How a task is judged: as its first client is, against the mean constant baseline of all."""
    members: dict[str, list[Judged]] = {}
    for name, by in run.judged.items():
        members.setdefault(groups[name], []).append(by)
    found = {}
    for task, those in members.items():
        known = {name for by in those for name in by.constant}
        scores = {k: fmean(by.constant[k] for by in those if k in by.constant) for k in known}
        found[task] = Judged(those[0].metric, scores)
    return found or {task: Judged() for task in groups.values()}
