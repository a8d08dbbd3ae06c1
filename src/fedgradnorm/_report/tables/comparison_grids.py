"""A comparison as tables: tasks, methods, every metric, and a sweep's points side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedgradnorm._methods import LOCAL
from fedgradnorm._report.arms import LOSS, SCORE, Arm, Contest, Measure
from fedgradnorm._report.cells import (
    BEYOND,
    about,
    arm_cell,
    bare,
    blank,
    brief,
    epochs,
    is_beyond,
    number,
    p_value,
    percent,
    score,
    task_cell,
    whole,
    word,
)
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._report.paper_numbers import paper_losses
from fedgradnorm._report.ranking import MANY, ranking, sight, uneven
from fedgradnorm._report.samples import TaskSample
from fedgradnorm._stored.groups import data_sets
from fedgradnorm._stored.summary import Estimate, estimate
from fedgradnorm.experiments._sweep import key_name, value_name

MEASURES = ((LOSS, "training loss"), (SCORE, "held-out metric"))
SIGHT_NOTE = "server sees: of the clients, beside the sum of their updates"
DELTA_NOTE = "Δm: mean over tasks of the relative gain, in %; more is better"


def shown_grids(comparison: Comparison) -> list[Grid]:
    """The tables for a reader: tasks and methods, or a sweep's points side by side."""
    if not comparison.points:
        return [tasks_grid(comparison), methods_grid(comparison)]
    swept = [sweep_grid(comparison, measure) for measure in (LOSS, SCORE)]
    gains = gains_grid(comparison)
    return [*swept, gains] if gains.rows else swept


def all_grids(comparison: Comparison) -> list[Grid]:
    """The tables for a reader, and those that are for files alone."""
    more = [tasks_grid(comparison), methods_grid(comparison)] if comparison.points else []
    return [*shown_grids(comparison), *more, metrics_grid(comparison)]


def interval_note(comparison: Comparison) -> str:
    """How the numbers are to be read."""
    if comparison.seeds == 1:
        return "one seed: no intervals and no tests"
    return f"mean ± half width of the 95% interval (Student's t) over {_seeds(comparison)} seeds"


def _means_note(comparison: Comparison) -> str:
    if comparison.seeds == 1:
        return "one seed: no intervals and no tests"
    return f"means over {_seeds(comparison)} seeds; the intervals are in the files"


def _seeds(comparison: Comparison) -> str:
    fewest = min(len(arm.samples) for arm in comparison.arms)
    return f"{fewest} to {comparison.seeds}" if uneven(comparison) else str(comparison.seeds)


def tasks_grid(comparison: Comparison) -> Grid:
    """A line per task and arm: loss, held-out metric, tests against the baseline, weight, pace."""
    base = comparison.baseline
    columns = ["task", "method", "training loss", "p (loss)", "held-out", "trivial",
               "p (held-out)", "weight",
               f"epochs to {base}'s loss", "paper's loss"]  # fmt: skip
    contests = {arm.label: comparison.against(arm, base) for arm in comparison.arms}
    tests = {
        (label, measure): contest.p_values(measure)
        for label, contest in contests.items()
        if contest is not None
        for measure in (LOSS, SCORE)
    }
    groups = []
    arms = [rank.arm for rank in ranking(comparison)] if _many(comparison) else comparison.arms
    for task in comparison.tasks:
        mine = [arm for arm in arms if arm.tasks(task)]
        best = {measure: _best(mine, task, measure) for measure in (LOSS, SCORE)}
        rows = []
        for arm in mine:
            samples = list(arm.tasks(task).values())
            contest = contests[arm.label]
            rows.append((
                task_cell(task), arm_cell(arm.label),
                number(_over(arm, task, LOSS), bold=arm.label in best[LOSS]),
                p_value(tests.get((arm.label, LOSS), {}).get(task)),
                _held_out(_over(arm, task, SCORE), samples[0], bold=arm.label in best[SCORE]),
                _trivial(samples[0]),
                p_value(tests.get((arm.label, SCORE), {}).get(task)),
                brief([s.weight for s in samples], 3),
                epochs(contest.epochs_to_reach(task) if contest else []),
                _paper(arm, task),
            ))  # fmt: skip
        groups.append(tuple(rows))
    notes = [interval_note(comparison)]
    if any(row[5] != blank() for group in groups for row in group):
        notes.append("trivial: what the most frequent class, or the mean, scores on these rows")
    if comparison.seeds > 1:
        notes.append(
            f"p: two-sided paired t-test across seeds against {base}, Holm-corrected over the tasks"
        )
    title = "Every task: training loss at the end and held-out metric"
    return without_blank(Grid("tasks", title, tuple(columns), tuple(groups), tuple(notes)))


def methods_grid(comparison: Comparison) -> Grid:
    """Two lines per arm, on training loss and held-out metric: gains, worst task, spread, cost.

    Many arms stand in the order of their gain, first on the one measure and then on the other, and
    what their servers see beside.
    """
    base = comparison.baseline
    columns = ("method", "measured on", f"Δm against {base}", f"Δm against {LOCAL}", "worst task",
               "its gain", "Jain", "server sees", "MB sent", "seconds", "seeds")  # fmt: skip
    notes = [
        interval_note(comparison),
        DELTA_NOTE,
        f"worst task: the smallest mean gain against {base}; "
        "Jain: index over tasks of how many times better each is, 1 = all alike",
    ]
    if _many(comparison):
        groups = tuple(
            tuple(
                _method_row(comparison, rank.arm, *which) for rank in ranking(comparison, which[0])
            )
            for which in MEASURES
        )
        notes += [
            f"sorted by Δm on each measure; {base} stands where zero is",
            SIGHT_NOTE,
        ]
    else:
        groups = tuple(
            tuple(_method_row(comparison, arm, *which) for which in MEASURES)
            for arm in comparison.arms
        )
    notes += _beyond_note(groups)
    return without_blank(Grid("methods", "Every method", columns, groups, tuple(notes)))


def _method_row(comparison: Comparison, arm: Arm, measure: Measure, what: str) -> tuple[Cell, ...]:
    base, samples = comparison.baseline, arm.samples.values()
    main, local = (comparison.against(arm, name) for name in (base, LOCAL))
    seen = sight(arm.method) if _many(comparison) else ""
    return (
        arm_cell(arm.label), word(what), delta_cell(main, measure),
        delta_cell(local if base != LOCAL else None, measure),
        *worst_cells(main, measure),
        replace(brief(main.spread(measure) if main else [], 3), higher=True),
        word(seen),
        brief([s.megabytes for s in samples], 1), brief([s.seconds for s in samples], 1),
        whole(len(samples)) if uneven(comparison) else blank(),
    )  # fmt: skip


def _many(comparison: Comparison) -> bool:
    """Whether arms are too many to find one among them, unless they are in order."""
    return len(comparison.arms) > MANY and not comparison.points


def sweep_grid(comparison: Comparison, measure: Measure) -> Grid:
    """A line per task and method, a column per point; one value where the method feels no point."""
    loss = measure is LOSS
    groups = []
    for task in comparison.tasks:
        unit = "" if loss else f" ({_unit(comparison, task)})"
        rows = []
        for line in comparison.lines:
            cells = [about(arm, _at(arm, task, measure)) for arm in comparison.along(line)]
            rows.append((task_cell(task, unit), word(line), *cells))
        groups.append(tuple(rows))
    name, what = ("sweep-loss", "training loss") if loss else ("sweep-held-out", "held-out metric")
    title = f"Sweep over {key_name(comparison.points[0])}: {what} at the end"
    columns = ("task", "method", *map(value_name, comparison.points))
    return Grid(name, title, columns, tuple(groups), (_means_note(comparison),))


def gains_grid(comparison: Comparison) -> Grid:
    """A line per method and measure, a column per point: Delta_m against the baseline."""
    groups = []
    for line in comparison.lines:
        rows = []
        for measure, what in MEASURES:
            cells = [
                about(arm, bare(delta_cell(comparison.against(arm, comparison.baseline), measure)))
                if arm is not None
                else blank()
                for arm in comparison.along(line)
            ]
            rows.append((word(line), word(what), *cells))
        if line != comparison.baseline:
            groups.append(tuple(rows))
    over = key_name(comparison.points[0])
    title = f"Sweep over {over}: Δm (%) against {comparison.baseline} at the same point"
    columns = ("method", "measured on", *map(value_name, comparison.points))
    notes = DELTA_NOTE, _means_note(comparison), *_beyond_note(groups)
    return Grid("sweep-gain", title, columns, tuple(groups), notes)


def _beyond_note(groups: Iterable[Iterable[Iterable[Cell]]]) -> list[str]:
    if not any(is_beyond(cell) for group in groups for row in group for cell in row):
        return []
    return [
        f"beyond {BEYOND} %: a loss held against is next to nothing, and such a gain says little"
    ]


def metrics_grid(comparison: Comparison) -> Grid:
    """Every metric of every split, for files."""
    groups = []
    for task in comparison.tasks:
        rows = []
        for arm in comparison.arms:
            samples = list(arm.tasks(task).values())
            for key in dict.fromkeys(key for sample in samples for key in sample.values):
                values = [sample.values[key] for sample in samples if key in sample.values]
                value = number(estimate(values), 4)
                rows.append((word(task), word(arm.label), word(key[0]), word(key[1]), value))
        groups.append(tuple(rows))
    columns = ("task", "method", "split", "metric", "value")
    note = interval_note(comparison)
    return Grid("every-metric", "Every metric at the end", columns, tuple(groups), (note,))


def _over(arm: Arm, task: str, measure: Measure) -> Estimate:
    return estimate([measure.of(sample) for sample in arm.tasks(task).values()])


def _best(arms: Sequence[Arm], task: str, measure: Measure) -> set[str]:
    """The best arm on every set of data that several arms were trained on."""
    means = {arm.label: _over(arm, task, measure).mean for arm in arms}
    by_group = {id(arm.group): arm for arm in arms if math.isfinite(means[arm.label])}
    sets = data_sets([arm.group for arm in by_group.values()])
    best = set()
    for rivals in ([by_group[id(one)] for one in found] for found in sets if len(found) > 1):
        first = next(iter(rivals[0].tasks(task).values()))
        pick = max if measure.higher(first) else min
        best.add(pick(rivals, key=lambda arm: means[arm.label]).label)
    return best


def _at(arm: Arm | None, task: str, measure: Measure) -> Cell:
    if arm is None or not arm.tasks(task):
        return blank()
    value, sample = _over(arm, task, measure), next(iter(arm.tasks(task).values()))
    return bare(number(value) if measure is LOSS else _held_out(value, sample))


def _held_out(value: Estimate, sample: TaskSample, *, bold: bool = False) -> Cell:
    """A held-out metric; nothing where the client held nothing out."""
    return score(value, sample.metric, bold=bold) if sample.held_out else blank()


def _trivial(sample: TaskSample) -> Cell:
    """What the most frequent class, or the mean, scores on the same rows."""
    if math.isnan(sample.trivial):
        return blank()
    return score(estimate([sample.trivial]), sample.metric)


def _unit(comparison: Comparison, task: str) -> str:
    sample = next(s for arm in comparison.arms for s in arm.tasks(task).values())
    return "%" if sample.metric == "accuracy" else sample.metric.upper()


def _paper(arm: Arm, task: str) -> Cell:
    sample = next(iter(arm.samples.values()))
    known = paper_losses(sample.experiment, arm.method)
    return blank() if arm.own or task not in known else Cell(f"{known[task]:g}", {"": known[task]})


def delta_cell(contest: Contest | None, measure: Measure) -> Cell:
    """Delta_m in percent, with its interval."""
    values = contest.delta_m(measure) if contest is not None else []
    return percent(estimate(values)) if values else blank()


def worst_cells(contest: Contest | None, measure: Measure) -> tuple[Cell, Cell]:
    """The task that gains least, and what it gains."""
    if contest is None or not contest.measured(measure):
        return blank(), blank()
    task, gain = contest.worst(measure)
    return word(task), replace(percent(estimate([gain])), numbers={"": gain})


def without_blank(grid: Grid) -> Grid:
    """The grid without columns in which nothing stands."""
    kept = [n for n in range(len(grid.columns)) if any(row[n] != blank() for row in grid.rows)]
    groups = tuple(tuple(tuple(row[n] for n in kept) for row in group) for group in grid.groups)
    columns = tuple(grid.columns[n] for n in kept)
    return Grid(grid.name, grid.title, columns, groups, grid.notes)
