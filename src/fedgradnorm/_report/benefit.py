"""The benefit over training alone: of every client, by variant, and by what a client ends with.

A client may end with the shared network, with a copy of it that it tuned, or with what does best on
its own validation examples: one of these two, or what it trained alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, get_args

import pandas as pd

from fedgradnorm._benefit.benefit import COLUMNS, Benefit, folded
from fedgradnorm._benefit.client_gain import GAINS, LOSES, UNCLEAR, ClientGain
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._report import words
from fedgradnorm._report.frame import Report, effects, every_metric, frame_of, in_points, partner
from fedgradnorm._report.grid import BLANK, Cell, Grid
from fedgradnorm._report.tables import gain_cell, p_cell
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm._runs.files import read_file
from fedgradnorm._runs.history import UNTUNED
from fedgradnorm._runs.layout import BENEFIT
from fedgradnorm.experiments._statistics import Estimate, estimate, gain, holm, paired_p
from fedgradnorm.tasks._named_metrics import MAIN_METRICS, higher_is_better

End = Literal["shared", "tuned", "chosen"]
ENDS: tuple[End, ...] = get_args(End)

PREFERRED = ("auc", *MAIN_METRICS)
"""The metric by which a client's gain is taken: the first of these that it has."""

TITLE = "Benefit over training alone"

Measured = Mapping[tuple[str, int], Sequence[ClientGain]]
"""What the command ``benefit`` wrote, by method and number of seeds."""

_NUMBERS = ("alone", "joined", "gain", "low", "high")


def write_benefit(benefit: Benefit, path: Path, method: str, seeds: int) -> None:
    """Write ``benefit.csv``: a row per client, with the method and the number of seeds."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, (*COLUMNS, "method", "seeds"), lineterminator="\n")
    writer.writeheader()
    for one in benefit.gains:
        row = {key: getattr(one, key) for key in COLUMNS}
        row |= {key: repr(row[key]) for key in _NUMBERS}
        writer.writerow({**row, "method": method, "seeds": seeds})
    try:
        write_atomically(path, buffer.getvalue().encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error


def read_benefit(path: Path) -> tuple[str, int, list[ClientGain]]:
    """Method, seeds and gains that :func:`write_benefit` wrote; a RunFolderError if it did not."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_file(path).decode())))
        (named,) = {(row["method"], int(row["seeds"])) for row in rows}
        return *named, [_read(row) for row in rows]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise RunFolderError(f"{path.name} is damaged: {error}") from error


def _read(row: dict[str, Any]) -> ClientGain:
    alone, joined, found, low, high = (float(row[key]) for key in _NUMBERS)
    names = (row["client"], row["task"], row["metric"], row["unit"])
    return ClientGain(*names, int(row["rows"]), alone, joined, found, low, high)


def read_measured(places: Sequence[Path]) -> tuple[Measured, list[str]]:
    """The benefit files next to the runs at these places, and which of them cannot be read."""
    found: dict[tuple[str, int], list[ClientGain]] = {}
    problems = []
    for path in (place / BENEFIT for place in places):
        if path.is_file():
            try:
                method, seeds, rows = read_benefit(path)
                found[method, seeds] = rows
            except RunFolderError as error:
                problems.append(str(error))
    return found, problems


@dataclass(frozen=True)
class VariantBenefit:
    """What the clients of a variant gain over ``base``, who train alone.

    ``by_examples`` says that intervals are over held-out examples, not over seeds.
    """

    variant: str
    base: str
    clients: tuple[ClientGain, ...]
    by_examples: bool

    @property
    def told(self) -> bool:
        """Whether there are intervals to judge by; with one seed there are none."""
        return any(not math.isnan(one.low) for one in self.clients)

    def count(self, verdict: str) -> int:
        """How many clients have this verdict; without intervals a gain's sign decides."""
        if self.told:
            return sum(one.verdict == verdict for one in self.clients)
        signs = [GAINS if c.gain > 0 else LOSES if c.gain < 0 else UNCLEAR for c in self.clients]
        return signs.count(verdict)

    def ordered(self) -> list[ClientGain]:
        """From the worst to the best; what is unknown is left out."""
        known = [one for one in self.clients if not math.isnan(one.gain)]
        return sorted(known, key=lambda one: one.gain)

    def by_unit(self, middle: Literal["mean", "median"]) -> str:
        """The mean or the median gain in each unit."""
        units = dict.fromkeys(one.unit for one in self.clients)
        known = {
            unit: [c.gain for c in self.clients if c.unit == unit and math.isfinite(c.gain)]
            for unit in units
        }
        pick = fmean if middle == "mean" else median
        return ", ".join(gain_text(pick(v), unit) for unit, v in known.items() if v) or "-"


def variant_benefits(report: Report, measured: Measured) -> list[VariantBenefit]:
    """Every finished variant that shares, against one that does not, on the same data and seeds.

    What the command ``benefit`` measured on held-out examples replaces intervals over seeds.
    """
    finished = [one for one in report.everybody if one.finished]
    alone = [one for one in finished if not one.shared]
    if not alone:
        return []
    names = {id(one): name for one, name in zip(report.everybody, report.groups, strict=True)}
    groups = {names[id(one)]: one for one in report.everybody}
    many = any(one.whole[0].pooled for one in report.groups.values())
    frame = frame_of(groups, report.baseline) if many else report.frame
    bases = {}
    for one in (one for one in finished if one.shared):
        beside = [b for b in alone if set(b.seeds) & set(one.seeds)]
        found = next(
            (b for m in {b.method for b in beside} if (b := partner(one, m, beside))), None
        )
        if found is not None:
            bases[names[id(one)]] = names[id(found)]
    gains = effects(
        frame.assign(solo=[bases.get(name, "") for name in frame.variant]), "score", "solo"
    )
    made = []
    for name, base in bases.items():
        mine = gains[gains.variant == name]
        clients = tuple(
            ClientGain(row.task, row.task, row.metric, row.unit, row.seeds, row.theirs, row.ours,
                       row.effect, row.low, row.high) for row in mine.itertuples()
        )  # fmt: skip
        known = tuple(measured.get((groups[name].method, report.seeds[name]), ()))
        here = {client for run in groups[name].whole for client in run.clients}
        given = bool(known) and {one.client for one in known} == here
        if given or clients:
            made.append(VariantBenefit(name, base, known if given else clients, given))
    return made


def better_off(found: Sequence[VariantBenefit]) -> dict[str, dict[str, bool]]:
    """By variant, which clients do better than alone."""
    return {
        one.variant: {c.client: c.gain > 0 for c in one.clients if not math.isnan(c.gain)}
        for one in found
    }


@dataclass(frozen=True)
class Gains:
    """One variant, ended in one way, against training alone, in one ``unit``.

    ``table`` has each client's gain, a row per seed; more is better. It is in points for scores
    between 0 and 1, such as accuracy and AUC, and in percent for errors, so a ratio to a score near
    zero cannot decide a mean. ``p`` is Holm-corrected over all gains that are shown together.
    """

    data: str
    variant: str
    method: str
    end: End
    unit: str
    table: pd.DataFrame
    about: Mapping[str, Mapping[str, Any]]
    overlap: float = 0.0
    p: float = math.nan

    @property
    def mean(self) -> Estimate:
        """The mean over clients and seeds, with its interval over seeds."""
        return self._estimate(self.table.mean(axis=1))

    @property
    def raw_p(self) -> float:
        """The p-value of the t-test over seeds that the mean gain is zero, uncorrected."""
        seeds = list(self.table.mean(axis=1))
        return paired_p(seeds, [0.0] * len(seeds), self.overlap)

    def share(self, sign: int) -> float:
        """The share of clients whose interval over seeds lies above (+1) or below (-1) zero."""
        found = [self._estimate(self.table[name]) for name in self.table]
        return fmean(one.half < sign * one.mean for one in found)

    def by_task(self) -> dict[str, Estimate]:
        """The mean gain of each task's clients, with its interval over seeds."""
        tasks = {name: self.about.get(name, {}).get("task", name) for name in self.table}
        means = self.table.T.groupby(tasks, sort=False).mean().T
        return {task: self._estimate(means[task]) for task in means}

    def size(self, client: str) -> int:
        """The number of examples that a client trained on."""
        return int(self.about.get(client, {}).get("size", 0))

    def _estimate(self, values: pd.Series) -> Estimate:
        return estimate(list(values.dropna()), self.overlap)


def all_gains(reports: Mapping[str, Report]) -> list[Gains]:
    """The gains of every variant that can be compared with training alone, by data set."""
    found = [one for data, report in reports.items() for one in _all_gains(data, report)]
    corrected = holm([one.raw_p for one in found])
    return [replace(one, p=p) for one, p in zip(found, corrected, strict=True)]


def _all_gains(data: str, report: Report) -> Iterator[Gains]:
    # Every client counts, also where the report shows quantiles over many.
    groups = dict(zip(report.groups, report.everybody, strict=True))
    frame = frame_of(groups, report.baseline)
    values: dict[tuple[str, int, str], dict[tuple[str, str], float]] = {}
    for row in every_metric(groups).itertuples():
        values.setdefault((row.variant, row.seed, row.task), {})[row.split, row.metric] = row.value
    for name, rows in frame[frame.alone != ""].groupby("variant", sort=False):
        base, group = rows.alone.iloc[0], groups[str(name)]
        pairs = [
            (row.seed, row.task, values[name, row.seed, row.task], values[base, row.seed, row.task])
            for row in rows.itertuples() if (base, row.seed, row.task) in values
        ]  # fmt: skip
        about = {k: v for k, v in group.whole[0].part("clients").items() if isinstance(v, dict)}
        for end in ENDS:
            found = pd.DataFrame(
                [(seed, task, *_gain(ours, alone, end)) for seed, task, ours, alone in pairs],
                columns=["seed", "task", "unit", "gain"],
            )
            for unit, mine in found.groupby("unit", sort=False):
                table = mine.pivot(index="seed", columns="task", values="gain")
                table = table[list(dict.fromkeys(mine.task))]
                if table.notna().any(axis=None):
                    yield Gains(
                        data, str(name), group.method, end, str(unit), table, about,
                        rows.overlap.iloc[0],
                    )  # fmt: skip


_Values = Mapping[tuple[str, str], float]


def _gain(ours: _Values, alone: _Values, end: End) -> tuple[str, float]:
    """The unit of a client's gain, and the gain."""
    metric = next((m for m in PREFERRED if ("test", m) in alone), "loss")
    base = alone.get(("test", metric), math.nan)
    value = _value(ours, alone, metric, end)
    if in_points(metric):
        return "points", 100 * (value - base)
    return "%", gain(value, base, higher=higher_is_better(metric)) if value != base else 0.0


def _value(ours: _Values, alone: _Values, metric: str, end: End) -> float:
    """The metric on test examples of what the client ends with; NaN where there is no such end."""
    tuned = (f"{UNTUNED}test", metric) in ours
    shared = UNTUNED if tuned else ""
    if end == "shared":
        return ours.get((f"{shared}test", metric), math.nan)
    if end == "tuned":
        return ours.get(("test", metric), math.nan) if tuned else math.nan
    candidates = [(ours, shared), (ours, ""), (alone, "")]
    losses = [one.get((f"{before}validation", "loss"), math.nan) for one, before in candidates]
    usable = [k for k, loss in enumerate(losses) if math.isfinite(loss)]
    if not usable:
        return math.nan
    one, before = candidates[min(usable, key=losses.__getitem__)]
    return one.get((f"{before}test", metric), math.nan)


_NOTES = (
    "benefit: gain over training alone in the held-out metric, more being better; mean over "
    "clients, ± half the width of its 95% interval over seeds; accuracy and AUC in points, NME and "
    "MAE in percent of the error alone",
    "intervals and tests are widened where every seed splits the same examples again (Nadeau and "
    "Bengio 2003)",
    "shared: the shared network; tuned: a copy of it that the client tuned; chosen: the best of "
    "shared, tuned and alone on the client's own validation examples",
    "p: of the t-test over seeds that the mean is zero, Holm-corrected over this table",
    "gain, lose: share of clients whose own interval over seeds lies above or below zero",
)


def benefit_grid(found: Sequence[Gains]) -> Grid:
    """A row per data set, variant, end and unit."""
    columns = ("data", "method", "ends with", "benefit", "p", "median client", "gain", "lose",
               "worst client", "its gain", "clients", "seeds")  # fmt: skip
    groups = _by_data(found, _benefit_row)
    return Grid("benefit", TITLE, columns, groups, _NOTES)


def _by_data(found: Sequence[Gains], row: Any) -> tuple[tuple[tuple[Cell, ...], ...], ...]:
    names = dict.fromkeys(one.data for one in found)
    return tuple(tuple(row(one) for one in found if one.data == name) for name in names)


def _benefit_row(one: Gains) -> tuple[Cell, ...]:
    means, seeds = one.table.mean(), len(one.table)
    known, of = int(means.notna().sum()), len(means)
    counted = str(of) if known == of else f"{known} of {of}"
    share = [Cell(f"{100 * s:.0f} %", {"": s}) for s in (one.share(+1), one.share(-1))]
    middle, least = (Estimate(float(v), math.nan, 1) for v in (means.median(), means.min()))
    return (
        Cell(one.data), Cell(one.variant, variant=one.variant), Cell(one.end),
        gain_cell(one.mean, one.unit), p_cell(one.p), gain_cell(middle, one.unit),
        *(share if seeds > 1 else (BLANK, BLANK)), Cell(str(means.idxmin())),
        gain_cell(least, one.unit), Cell(counted, {"": known}), Cell(str(seeds), {"": seeds}),
    )  # fmt: skip


def by_task_grid(found: Sequence[Gains]) -> Grid:
    """A row per data set, variant and end, a column per task, of data sets with several tasks."""
    lines: dict[tuple[str, str, End], dict[str, Cell]] = {}
    for one in found:
        cells = {task: gain_cell(mean, one.unit) for task, mean in one.by_task().items()}
        lines.setdefault((one.data, one.variant, one.end), {}).update(cells)
    several = {key: cells for key, cells in lines.items() if len(cells) > 1}
    tasks = list(dict.fromkeys(task for cells in several.values() for task in cells))
    groups = tuple(
        tuple(
            (Cell(data), Cell(name, variant=name), Cell(end), *(c.get(t, BLANK) for t in tasks))
            for (data, name, end), c in several.items() if data == each
        )
        for each in dict.fromkeys(data for data, _, _ in several)
    )  # fmt: skip
    columns = ("data", "method", "ends with", *tasks)
    return Grid("benefit-tasks", f"{TITLE}, by task", columns, groups, _NOTES[:3])


def client_grid(benefit: Benefit, title: str) -> Grid:
    """A row per client; of many clients, the worst, the median and the best ones."""
    places = folded([one.gain for one in benefit.gains])
    rows = tuple(_client_row(benefit.gains[place]) for place in places)
    notes = ["gain: of errors in percent of what they are alone, of accuracies in points"]
    if left := len(benefit.gains) - len(places):
        notes.append(f"the worst, the median and the best clients; {left} between them left out")
    columns = ("client", "metric", "alone", "joined", "gain", "verdict", "95 % interval")
    return Grid("benefit-clients", title, columns, (rows,), tuple(notes))


def _client_row(one: ClientGain) -> tuple[Cell, ...]:
    told = one.verdict != UNCLEAR
    return (
        Cell(one.client), Cell(one.metric),
        Cell(metric_text(one.alone, one.metric), {"": one.alone}),
        Cell(metric_text(one.joined, one.metric), {"": one.joined}),
        Cell(gain_text(one.gain, one.unit), {"": one.gain}, bold=told),
        Cell(one.verdict, bold=told), Cell(interval_text(one)),
    )  # fmt: skip


def metric_text(value: float, metric: str) -> str:
    """A metric: an accuracy in percent, an error with four digits."""
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def gain_text(value: float, unit: str) -> str:
    """A gain with its sign and unit."""
    return words.gain(Estimate(value, math.nan, 1), unit)


def interval_text(one: ClientGain) -> str:
    """Both ends of an interval, or that there is none."""
    return "-" if math.isnan(one.low) else f"{one.low:+.1f} to {one.high:+.1f}"
