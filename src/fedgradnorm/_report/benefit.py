"""The benefit over training alone: of every client, by variant, and by what a client ends with.

A client may end with the shared network, with a copy of it that it tuned, or with what does best on
its own validation examples: one of these two, or what it trained alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from fedgradnorm._benefit.benefit import COLUMNS, Benefit, folded
from fedgradnorm._benefit.client_gain import GAINS, LOSES, UNCLEAR, ClientGain
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._report import words
from fedgradnorm._report.frame import Report, effects, frame_of, partner
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm._runs.files import read_file
from fedgradnorm._runs.layout import BENEFIT
from fedgradnorm.experiments._statistics import Estimate

TITLE = "Benefit over training alone"

Measured = Mapping[tuple[str, int], Sequence[ClientGain]]
"""What the command ``benefit`` wrote, by variant and number of seeds."""

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
        known = tuple(measured.get((groups[name].label, report.seeds[name]), ()))
        here = {client for run in groups[name].whole for client in run.clients}
        given = bool(known) and {one.client for one in known} == here
        if given or clients:
            made.append(VariantBenefit(name, base, known if given else clients, given))
    return made


def better_off(found: Sequence[VariantBenefit]) -> dict[str, dict[str, bool]]:
    return {
        one.variant: {c.client: c.gain > 0 for c in one.clients if not math.isnan(c.gain)}
        for one in found
    }


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
    return words.gain(Estimate(value, math.nan, 1), unit)


def interval_text(one: ClientGain) -> str:
    return "-" if math.isnan(one.low) else f"{one.low:+.1f} to {one.high:+.1f}"
