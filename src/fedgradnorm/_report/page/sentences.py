"""What the page says in sentences, computed from the runs: the headline and what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedgradnorm._report.record import Record
from fedgradnorm._report.tables.summaries import TaskRow
from fedgradnorm._stored.groups import Group
from fedgradnorm._stored.reader import StoredRun
from fedgradnorm.experiments._statistics import holm, paired_p
from fedgradnorm.tasks._named_metrics import higher_is_better

LEVEL = 0.05
_NAMED = 5  # more tasks than this are counted, not listed
_SPLITS = {"test": "held-out data", "validation": "validation data", "train": "training data"}


@dataclass(frozen=True)
class Verdict:
    """Who is ahead on a task, at a sweep's ``point`` if there is one.

    ``leader`` has the best mean. ``p`` is that of its lead, seed by seed, over the rival that is
    hardest to tell from it: a lead over all is a lead over each. ``level`` are the rivals that the
    seeds do not tell from it, ``behind`` is the number of the others.
    """

    task: str
    leader: str
    p: float
    point: str = ""
    level: tuple[str, ...] = ()
    behind: int = 0

    @property
    def clear(self) -> bool:
        """Whether the lead is more than the seeds' own spread makes likely; else they are level."""
        return self.p < LEVEL


def verdicts(
    rows: Sequence[TaskRow],
    records: Sequence[Record],
    points: Mapping[str, frozenset[str]] | None = None,
) -> list[Verdict]:
    """A verdict on every task that two methods have on the same data; p corrected for all.

    ``points`` are a sweep's, each with the labels that stand at it: only those are rivals.
    """
    rivals: dict[tuple[str, str, int], list[TaskRow]] = {}
    at = points or {"": frozenset(row.method for row in rows)}
    for point, labels in at.items():
        for row in rows:
            if row.method in labels and math.isfinite(row.value.mean):
                rivals.setdefault((point, row.task, row.data), []).append(row)
    values = _by_seed(records)
    found = []
    for (point, task, _), mine in rivals.items():
        if len(mine) < 2 or len({(row.metric, row.split) for row in mine}) > 1:
            continue
        pick = max if higher_is_better(mine[0].metric) else min
        best = pick(mine, key=lambda row: row.value.mean)
        ours = values[best.method, task]
        rest = [row.method for row in mine if row is not best]
        raw = [_p(ours, values[method, task]) for method in rest]
        level = tuple(m for m, p in zip(rest, holm(raw), strict=True) if p >= LEVEL)
        behind = len(rest) - len(level)
        found.append(Verdict(task, best.method, max(raw), point, level, behind))
    corrected = holm([verdict.p for verdict in found])
    return [replace(one, p=p) for one, p in zip(found, corrected, strict=True)]


def headline(rows: Sequence[TaskRow], judged: Sequence[Verdict]) -> str:
    """One sentence: which method is best on which tasks."""
    methods = list(dict.fromkeys(row.method for row in rows))
    if not rows:
        return "Nothing to compare yet: no run holds an evaluation."
    if len(methods) == 1:
        fell = [row.task for row in rows if row.last_loss.mean < row.first_loss.mean]
        return f"{methods[0]} lowers the training loss on {_tasks(fell, len(rows))}."
    if not judged:
        return (
            "These runs share no task on the same data, "
            "so no method can be called better than another."
        )
    sets = len({row.data for row in rows})
    if sets > 1:
        return f"These runs are on {sets} sets of data; only runs on the same one are compared."
    return told(judged)


def told(judged: Sequence[Verdict]) -> str:
    """Who is best on which of these tasks, and where the best are level."""
    won: dict[str, list[str]] = {}
    for verdict in judged:
        if verdict.clear:
            won.setdefault(verdict.leader, []).append(verdict.task)
    level = [verdict.task for verdict in judged if not verdict.clear]
    order = sorted(won.items(), key=lambda item: -len(item[1]))
    parts = [
        f"{method} {'is best on' if i == 0 else 'on'} {_tasks(tasks, len(judged))}"
        for i, (method, tasks) in enumerate(order)
    ]
    if not parts:
        return f"The best methods are level on {_tasks(level, len(judged))}."
    sentence = ", ".join(parts)
    if level:
        sentence += f"; on {_tasks(level, len(judged))} the best are level"
    return f"{sentence}."


def basis(rows: Sequence[TaskRow], judged: Sequence[Verdict]) -> str:
    """What the headline rests on, and how far it can be trusted."""
    if not rows:
        return ""
    where = _where(rows)
    counts = sorted({row.seeds for row in rows})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else _count(counts[0], "seed")
    if not judged:
        return f"From {seeds}."
    text = f"By accuracy or error on {where}, mean of {seeds}."
    if counts[-1] < 2:
        return f"{text} One seed cannot tell a lead from luck."
    return (
        f"{text} Best: ahead of every other method by more than the seeds' own spread "
        "(paired t-test over seeds, p < 0.05 after Holm's correction). Level: not so."
    )


def _where(rows: Sequence[TaskRow]) -> str:
    """Where the results were measured; tasks without held-out rows are named."""
    tasks: dict[str, list[str]] = {}
    for row in rows:
        tasks.setdefault(_SPLITS.get(row.split, row.split), []).append(row.task)
    if len(tasks) == 1:
        return next(iter(tasks))
    parts = (f"{name} ({listed(list(dict.fromkeys(who)))})" for name, who in tasks.items())
    return listed(list(parts))


def missing(runs: Sequence[StoredRun], groups: Sequence[Group]) -> list[str]:
    """Everything a reader should know before trusting the figures."""
    notes = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    for run in runs:
        if run.rows and run.manifest and not run.finished:
            planned = f" of {run.planned}" if run.planned else ""
            notes.append(f"{run.name} is not finished: round {run.last_round}{planned}")
    scaled = sum(run.scaled for group in groups for run in group.whole)
    if scaled:
        notes.append(f"losses are divided by the factor they were given ({scaled} runs)")
    for group in groups:
        if group.partial:
            names = ", ".join(run.name for run in group.partial)
            notes.append(f"{group.label}: thin lines are {names}, stopped early, not in the means")
    return notes


def listed(names: Sequence[str]) -> str:
    """Names in a row.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _tasks(names: Sequence[str], of: int) -> str:
    if len(names) == of and of > 1:
        return f"all {of} tasks" if of > 2 else "both tasks"
    if not names:
        return f"none of {_count(of, 'task')}"
    return listed(names) if len(names) <= _NAMED else f"{len(names)} of {of} tasks"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _p(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """p of the paired test over common seeds; 1 where they are too few to tell."""
    seeds = sorted(ours.keys() & theirs.keys())
    p = paired_p([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    return 1.0 if math.isnan(p) else p


def _by_seed(records: Sequence[Record]) -> dict[tuple[str, str], dict[int, float]]:
    values: dict[tuple[str, str], dict[int, float]] = {}
    for record in records:
        for result in record.results():
            values.setdefault((record.label, result.client), {})[record.seed] = result.value
    return values
