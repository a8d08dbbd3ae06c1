"""The benefit from stored runs: a group of runs that share, against one that does not.

Examples are not stored, so intervals are over seeds. What the command ``benefit`` has measured per
example replaces them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from fedgradnorm._benefit.client_gain import GAINS, LOSES, UNCLEAR, ClientGain, gains, unit_of
from fedgradnorm._errors import RunFolderError
from fedgradnorm._report.benefit_file import read_benefit
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.layout import BENEFIT
from fedgradnorm._stored.groups import Group, unlike
from fedgradnorm._stored.reader import StoredRun
from fedgradnorm._stored.summary import estimate

Measured = Mapping[tuple[str, int], Sequence[ClientGain]]
"""What the command ``benefit`` wrote, by method and number of seeds."""


@dataclass(frozen=True)
class GroupBenefit:
    """What the clients of ``arm`` gain over those of ``base``, who are alone.

    ``by_rows`` says that intervals are over held-out rows, not over seeds.
    """

    arm: Group
    base: Group
    clients: tuple[ClientGain, ...]
    by_rows: bool

    @property
    def told(self) -> bool:
        """Whether there are intervals to judge by; one seed has none."""
        return any(not math.isnan(one.low) for one in self.clients)

    def share(self, verdict: str) -> int:
        """How many clients have this verdict; without intervals a gain's sign decides."""
        told = self.told
        return sum(_verdict(one, told) == verdict for one in self.clients)

    def order(self) -> list[ClientGain]:
        """From the worst to the best; what is unknown is left out."""
        known = [one for one in self.clients if not math.isnan(one.gain)]
        return sorted(known, key=lambda one: one.gain)

    def middle(self) -> dict[str, float]:
        """The median gain by unit."""
        return {unit: median(values) for unit, values in self._by_unit().items()}

    def mean(self) -> dict[str, float]:
        """The mean gain by unit, of those that are finite."""
        return {unit: fmean(values) for unit, values in self._by_unit().items()}

    def _by_unit(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for one in self.clients:
            if math.isfinite(one.gain):
                found.setdefault(one.unit, []).append(one.gain)
        return found


def _verdict(one: ClientGain, told: bool) -> str:
    if told:
        return one.verdict
    return GAINS if one.gain > 0 else LOSES if one.gain < 0 else UNCLEAR


def group_benefits(groups: Sequence[Group], measured: Measured) -> list[GroupBenefit]:
    """Every finished arm that shares, against one that does not, on the same data and seeds."""
    alone = [one for one in groups if not one.shared and one.finished]
    found = []
    for arm in (one for one in groups if one.shared and one.finished):
        fitting = [b for b in alone if set(b.seeds) & set(arm.seeds) and arm.same_data(b)]
        alike = [base for base in fitting if not unlike([arm, base])] or fitting
        if alike and (one := _group_benefit(arm, alike[0], measured)).clients:
            found.append(one)
    return found


def _group_benefit(arm: Group, base: Group, measured: Measured) -> GroupBenefit:
    known = measured.get((arm.method, len(arm.seeds)), ())
    here = {name for run in arm.whole for name in run.clients}
    if known and {one.client for one in known} == here:
        return GroupBenefit(arm, base, tuple(known), by_rows=True)
    seeds = [seed for seed in arm.seeds if seed in base.seeds]
    pairs = [(_last(arm.seeds[seed]), _last(base.seeds[seed])) for seed in seeds]
    both = [name for name in pairs[0][0] if all(name in a and name in b for a, b in pairs)]
    rows = [_gain(name, [(a[name], b[name]) for a, b in pairs]) for name in both]
    return GroupBenefit(arm, base, tuple(rows), by_rows=False)


def _last(run: StoredRun) -> dict[str, Row]:
    """Each client's last evaluation on test rows."""
    return {row["client"]: row for row in run.rows if row["split"] == "test"}


def _gain(client: str, pairs: Sequence[tuple[Row, Row]]) -> ClientGain:
    """The mean gain over seeds, and its interval."""
    metric = "accuracy" if all("accuracy" in row for pair in pairs for row in pair) else "loss"
    joined, alone = (np.array([pair[i][metric] for pair in pairs], float) for i in (0, 1))
    unit = unit_of(metric)
    mean = estimate([float(value) for value in gains(alone, joined, unit)])
    ends = (mean.mean - mean.half, mean.mean + mean.half)
    values = (float(alone.mean()), float(joined.mean()), mean.mean, *ends)
    return ClientGain(client, client, metric, unit, len(pairs), *values)


def read_measured(
    places: Sequence[Path],
) -> tuple[dict[tuple[str, int], list[ClientGain]], list[str]]:
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
