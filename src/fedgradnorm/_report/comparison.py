"""A comparison, read from run folders: arms, a baseline, and what is missing or not in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgradnorm._errors import RunFolderError
from fedgradnorm._methods import METHODS
from fedgradnorm._report.arms import Arm, Contest, arms_of, partner
from fedgradnorm._report.record import Record, records_of
from fedgradnorm._stored.generated import synthetic
from fedgradnorm._stored.groups import group, unlike
from fedgradnorm._stored.reader import StoredRun, collect
from fedgradnorm.experiments._sweep import point_name


@dataclass(frozen=True)
class Comparison:
    """Arms, the name of the method they are held against, and what was not in order.

    ``records`` are the arms' runs as curves are drawn from them; ``synthetic`` says in words that
    the data was made by a program, if it was. No arm is held against one on other data.
    """

    arms: tuple[Arm, ...]
    baseline: str
    notes: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()
    synthetic: str = ""

    @property
    def tasks(self) -> list[str]:
        """All tasks, in the order of the first runs."""
        samples = [s for arm in self.arms for s in arm.samples.values()]
        return list(dict.fromkeys(name for sample in samples for name in sample.tasks))

    @property
    def seeds(self) -> int:
        """The largest number of seeds of an arm."""
        return max(len(arm.samples) for arm in self.arms)

    @property
    def points(self) -> list[Mapping[str, Any]]:
        """The points of a sweep; empty where there is no more than one."""
        found = {point_name(arm.point): arm.point for arm in self.arms if arm.point}
        return list(found.values()) if len(found) > 1 else []

    @property
    def lines(self) -> list[str]:
        """The arms' names but for the points of a sweep, in their order."""
        return list(dict.fromkeys(arm.group.line for arm in self.arms))

    def along(self, line: str) -> list[Arm | None]:
        """The arms of this name at all points; the same one where it feels none of them."""
        mine = {point_name(arm.point): arm for arm in self.arms if arm.group.line == line}
        return [mine.get(point_name(point), mine.get("")) for point in self.points]

    def against(self, arm: Arm, method: str) -> Contest | None:
        """The arm against its partner of that method; None if there is none or it is the arm."""
        base = partner(arm, method, self.arms)
        return None if base is None or base is arm else Contest(arm, base, self.tasks)


def read_comparison(places: Sequence[Path], baseline: str = "") -> Comparison:
    """The comparison that the run folders at ``places`` make, damaged ones named in its notes."""
    runs, missing = collect(places)
    return comparison_of(runs, baseline, missing)


def comparison_of(
    runs: Sequence[StoredRun], baseline: str = "", notes: Sequence[str] = ()
) -> Comparison:
    """The comparison of these runs; the baseline is the equal weights' where none is named."""
    groups, told = group(runs)
    arms = arms_of(groups)
    if not arms:
        raise RunFolderError("nothing to compare: no run there holds an evaluation")
    methods = list(dict.fromkeys(arm.method for arm in arms))
    if baseline and baseline not in methods:
        raise RunFolderError(
            f"no run of the baseline {baseline!r} there; there are: {', '.join(methods)}"
        )
    chosen = baseline or ("fedrep" if "fedrep" in methods else methods[0])
    arms.sort(key=lambda arm: _place(arm, chosen))
    problems = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    found = (*notes, *problems, *_unfinished(runs), *_missing_seeds(arms), *told)
    return Comparison(
        tuple(arms),
        chosen,
        (*found, *_untested(arms, chosen), *_nothing_held_out(arms)),
        tuple(records_of([arm.group for arm in arms])),
        synthetic(runs),
    )


def _untested(arms: Sequence[Arm], baseline: str) -> list[str]:
    """Arms without anybody to be tested against, and those tested against somebody unlike them."""
    notes = []
    for arm in arms:
        base = partner(arm, baseline, arms)
        if base is None:
            notes.append(f"{arm.label}: not tested, there is no {baseline} on the same data")
        elif arm.method != baseline and (odd := unlike([arm.group, base.group])):
            keys = ", ".join(odd)
            notes.append(f"{arm.label}: tested against {base.label}, which differs in {keys}")
    return notes


def _nothing_held_out(arms: Sequence[Arm]) -> list[str]:
    tasks = [task for arm in arms for s in arm.samples.values() for task in s.tasks.items()]
    names = dict.fromkeys(name for name, task in tasks if not task.held_out)
    return [f"no held-out metric, for no rows were held out: {', '.join(names)}"] if names else []


def _place(arm: Arm, baseline: str) -> tuple[object, ...]:
    """Point by point, and at each the baseline first, then methods as the package lists them.

    A method's variants follow it.
    """
    known = list(METHODS)
    rank = known.index(arm.method) if arm.method in known else len(known)
    return (*_sizes(arm.point), arm.method != baseline, rank, arm.method, *_sizes(arm.own))


def _sizes(values: Mapping[str, Any]) -> tuple[object, ...]:
    """Values in an order: fewer before more, numbers by size and before words."""
    numbers = [
        (not isinstance(v, int | float), v if isinstance(v, int | float) else 0, str(v))
        for v in values.values()
    ]
    return len(values), numbers


def _unfinished(runs: Sequence[StoredRun]) -> list[str]:
    found = []
    for run in runs:
        if not run.finished:
            reached = f"epoch {run.rows[-1]['epoch']:.1f}" if run.rows else "no round"
            planned = f" (round {run.last_round} of {run.planned})" if run.planned else ""
            found.append(f"{run.name}: not finished, {reached}{planned} reached")
    return found


def _missing_seeds(arms: Sequence[Arm]) -> list[str]:
    every = sorted({seed for arm in arms for seed in arm.samples})
    lacking = {arm.label: [s for s in every if s not in arm.samples] for arm in arms}
    return [
        f"{label}: no finished run of seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}"
        for label, seeds in lacking.items()
        if seeds
    ]
