"""The result of a comparison in one sentence, and what that sentence rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from fedgradnorm._report.frame import effects
from fedgradnorm._report.words import count, listed
from fedgradnorm.experiments._statistics import LEVEL

NAMED = 6
"""More tasks than this are counted, and the largest effects named."""

ENOUGH = 3
"""Seeds to ask for where there is one."""

CLOSE = 0.5
"""Without a winner, an effect with a p-value below this is named as the closest to one."""

_SPLITS = {"test": "held-out data", "validation": "validation data", "train": "training data"}


def headline(frame: pd.DataFrame) -> str:
    """The result in one sentence: which variant beats its baseline on which tasks, by how much.

    The variant named is the one that is significantly better on the most tasks; among equals, the
    one with the largest mean effect. Tasks on which it does not even beat the constant baseline are
    named. ``frame`` is that of a ``Report``.
    """
    frame = frame[frame.main.astype(bool)]
    if frame.empty:
        return "Nothing to compare yet: no run holds an evaluation."
    found = effects(frame)
    if frame.variant.nunique() == 1:
        return _alone(frame)
    if found.empty:
        found = effects(frame, "loss")
    if found.empty:
        return "These runs share no task on the same data, so they cannot be compared."
    if frame.data.nunique() > 1:
        return (
            f"These runs use {frame.data.nunique()} different data sets; "
            "only runs on the same data are compared."
        )
    if found.point.nunique() > 1:
        return _sweep(found)
    name, text = _one_seed(found) if found.seeds.max() < 2 else _best(found)
    return text + _below_constant(frame, name)


def basis(frame: pd.DataFrame) -> str:
    """What the headline rests on: data, seeds and tests."""
    frame = frame[frame.main.astype(bool)]
    if frame.empty:
        return ""
    counts = sorted(frame.groupby("variant").seed.nunique())
    seeds = count(counts[-1], "seed")
    if counts[0] != counts[-1]:
        seeds = f"{counts[0]} to {seeds}"
    where = listed([_SPLITS[split] for split in _SPLITS if split in set(frame.split)])
    text = f"Measured on {where}, {'mean of ' if counts[-1] > 1 else ''}{seeds}."
    found = effects(frame)
    if counts[-1] < 2 or found.empty:
        return text
    return text + (
        " Paired t-tests over seeds, Holm-corrected over all comparisons; "
        f"a difference is significant if p < {LEVEL:g}."
    )


def tally(found: pd.DataFrame) -> pd.DataFrame:
    """For each variant, on how many tasks it is significantly better or worse, the best first."""
    told = found.assign(
        wins=(found.p < LEVEL) & (found.effect > 0),
        losses=(found.p < LEVEL) & (found.effect < 0),
        ahead=found.effect > 0,
    )
    counts = told.groupby("variant", sort=False)[["wins", "losses", "ahead"]].sum()
    counts["tasks"] = told.groupby("variant", sort=False).size()
    relative = (found.effect.clip(-100, 100)).groupby(found.variant).mean()
    counts["mean"] = relative.reindex(counts.index)
    return counts.sort_values(["wins", "mean"], ascending=False, kind="stable")


def effect_text(row: pd.Series, *, p: bool = True) -> str:
    """One effect in words: ``gender +15.5 points (p = .017)``, ``landmark NME 4.2 % lower``."""
    if row.unit == "points":
        text = f"{row.task} {row.effect:+.1f} points"
    else:
        up = (row.effect > 0) == bool(row.higher)
        name = "loss" if row.metric == "loss" else row.metric.upper()
        text = f"{row.task} {name} {abs(row.effect):.1f} % {'higher' if up else 'lower'}"
    if not p or math.isnan(row.p):
        return text
    return f"{text} (p {'< .001' if row.p < 0.001 else f'= {row.p:.3f}'.replace('0.', '.', 1)})"


def _best(found: pd.DataFrame) -> tuple[str, str]:
    """The variant with the most wins, and the sentence about it."""
    counts = tally(found)
    if not counts.wins.any():
        return "", _no_winner(found, counts)
    name = str(counts.index[0])
    mine = found[found.variant == name]
    won = mine[(mine.p < LEVEL) & (mine.effect > 0)]
    lost = mine[(mine.p < LEVEL) & (mine.effect < 0)]
    same = mine.drop(won.index).drop(lost.index)
    base = mine.base.iloc[0]
    parts = [f"{name} beats {base} on {_tasks(len(won), len(mine))}: {_named(won)}"]
    if len(lost):
        parts.append(f"worse on {_named(lost)}")
    if len(same):
        which = listed(list(same.task)) if len(same) <= NAMED else count(len(same), "task")
        parts.append(f"not distinguishable from it on {which}")
    return name, f"{'; '.join(parts)}."


def _no_winner(found: pd.DataFrame, counts: pd.DataFrame) -> str:
    base = found.base.iloc[0]
    worse = counts[counts.losses > 0]
    tasks = found.task.nunique()
    head = f"No method is significantly better than {base} on any of {count(tasks, 'task')}"
    if tasks == 1:
        head = f"No method is significantly better than {base}"
    parts = [head]
    known = found[(found.effect > 0) & (found.p < CLOSE)]
    if len(known):
        top = known.sort_values("p", kind="stable").iloc[0]
        parts.append(f"closest is {top.variant}: {effect_text(top)}")
    if len(worse):
        named = [f"{name} on {row.losses:.0f}" for name, row in worse.head(NAMED).iterrows()]
        parts.append(f"significantly worse: {listed(named)}")
    return f"{'; '.join(parts)}."


def _one_seed(found: pd.DataFrame) -> tuple[str, str]:
    counts = tally(found).sort_values(["ahead", "mean"], ascending=False, kind="stable")
    name = str(counts.index[0])
    mine = found[found.variant == name]
    ahead, base = mine[mine.effect > 0], mine.base.iloc[0]
    start = f"One seed cannot tell methods apart; train at least {ENOUGH} seeds. In this one"
    if ahead.empty:
        return "", f"{start}, no method is ahead of {base} on any task."
    where = _tasks(len(ahead), len(mine))
    return name, f"{start}, {name} is ahead of {base} on {where}: {_named(ahead, p=False)}."


def _below_constant(frame: pd.DataFrame, name: str) -> str:
    """The tasks on which the variant does not beat the constant baseline, where that is known."""
    mine = frame[(frame.variant == name) & frame.constant.notna()]
    means = mine.groupby("task", sort=False)[["score", "constant", "higher"]].mean()
    sign = means.higher.where(means.higher > 0, -1.0)
    poor = list(means.index[sign * (means.score - means.constant) <= 0])
    if not poor:
        return ""
    which = listed(poor) if len(poor) <= NAMED else f"{len(poor)} of {len(means)} tasks"
    return f" It does not beat the constant baseline on {which}."


def _sweep(found: pd.DataFrame) -> str:
    lines = [
        (int(mine.won.sum()), int(mine.lost.sum()), len(mine), str(line), mine)
        for line, mine in found.assign(
            won=(found.p < LEVEL) & (found.effect > 0), lost=(found.p < LEVEL) & (found.effect < 0)
        ).groupby("line", sort=False)
    ]
    points = found.point[found.point != ""].nunique()
    base = str(found.base.iloc[0]).split(" ")[0]
    start = f"{points} points by {count(found.task.nunique(), 'task')}"
    if found.seeds.max() < 2:
        parts = [f"{line} is ahead of {base} in {(mine.effect > 0).sum()} of {of}"
                 for _, _, of, line, mine in lines]  # fmt: skip
        return (
            f"One seed cannot tell methods apart; train at least {ENOUGH} seeds. "
            f"In this sweep over {start}, {listed(parts)}."
        )
    lines.sort(key=lambda one: one[1] - one[0])
    won, lost, of, line, mine = lines[0]
    text = f"Sweep over {start}: {line} is significantly better than {base} in {won} of {of} cases"
    if won:
        top = mine[mine.won].sort_values(["unit", "effect"], ascending=[False, False]).iloc[0]
        text += f" (most: {effect_text(top)} at {top.point or 'every point'})"
    text += f" and worse in {lost}"
    rest = [f"{name}: better in {w}, worse in {x} of {n}" for w, x, n, name, _ in lines[1:NAMED]]
    return f"{text}{'; ' if rest else ''}{'; '.join(rest)}."


def _alone(frame: pd.DataFrame) -> str:
    """One variant: against the constant baseline where that is known, else its training loss."""
    name = frame.variant.iloc[0]
    means = frame.groupby("task", sort=False).agg(
        {"score": "mean", "constant": "mean", "higher": "first", "first_loss": "mean",
         "loss": "mean"}
    )  # fmt: skip
    known = means[means.constant.notna()]
    if len(known):
        better = known[(known.score > known.constant) == known.higher.astype(bool)]
        text = f"{name} beats the constant baseline on {_tasks(len(better), len(known))}"
    else:
        fell = int((means.loss < means.first_loss).sum())
        text = f"{name} lowers the training loss on {_tasks(fell, len(means))}"
    return f"{text}."


def _named(found: pd.DataFrame, *, p: bool = True) -> str:
    """Effects in words; of many, the largest."""
    if len(found) <= NAMED:
        return ", ".join(effect_text(row, p=p) for _, row in found.iterrows())
    order = found.assign(size=found.effect.abs()).sort_values("size", ascending=False)
    first: Sequence[str] = [effect_text(row, p=p) for _, row in order.head(3).iterrows()]
    return f"{', '.join(first)} and others"


def _tasks(some: int, of: int) -> str:
    if of == 1:
        return "its task" if some else "no task"
    if some == of:
        return f"all {of} tasks" if of > 2 else "both tasks"
    return f"{some} of {of} tasks"
