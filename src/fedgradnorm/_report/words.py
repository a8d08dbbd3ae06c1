"""How numbers are written: losses, metrics, gains, p-values, intervals; and names in words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from fedgradnorm.experiments._statistics import Estimate

BEYOND = 1000
"""Percent; a relative gain is larger only if what it is relative to is close to zero."""


def fixed(value: Estimate, digits: int) -> str:
    """The mean with so many digits, and its interval where there is one."""
    text = f"{value.mean:.{digits}f}"
    return text if math.isnan(value.half) else f"{text} ± {value.half:.{digits}f}"


def loss(value: Estimate) -> str:
    """A loss with three or four digits, and its interval where there is one.

    >>> loss(Estimate(133.6318, float("nan"), 1)), loss(Estimate(0.2118, 0.01, 3))
    ('133.6', '0.212 ± 0.010')
    """
    if math.isnan(value.mean):
        return "nan"
    return fixed(value, 1 if abs(value.mean) >= 100 else 2 if abs(value.mean) >= 10 else 3)


def metric(value: Estimate, name: str) -> str:
    """An accuracy in percent, or another metric with its name.

    >>> metric(Estimate(0.6071, 0.012, 5), "accuracy"), metric(Estimate(3.2, math.nan, 1), "mae")
    ('60.7 ± 1.2 %', 'MAE 3.200')
    """
    if math.isnan(value.mean):
        return f"{name.upper()} n/a"
    if name == "accuracy":
        return f"{fixed(Estimate(100 * value.mean, 100 * value.half, value.count), 1)} %"
    return f"{name.upper()} {loss(value)}"


def weight(value: Estimate) -> str:
    """A weight with three digits, however small.

    >>> weight(Estimate(1.23456, math.nan, 1)), weight(Estimate(0.00091, 0.0001, 3))
    ('1.235', '9.1e-4')
    """
    if math.isnan(value.mean):
        return "-"
    small = 0 < abs(value.mean) < 5e-3
    return f"{value.mean:.1e}".replace("e-0", "e-") if small else fixed(value, 3)


def gain(value: Estimate, unit: str) -> str:
    """A signed gain; of one beyond all measure only that it is.

    >>> gain(Estimate(15.52, 8.97, 5), "points"), gain(Estimate(-2e6, math.nan, 1), "%")
    ('+15.5 ± 9.0 points', '< -1000 %')
    """
    if math.isnan(value.mean):
        return "nan"
    if abs(value.mean) > BEYOND:
        return f"{'>' if value.mean > 0 else '< -'}{' ' if value.mean > 0 else ''}{BEYOND} {unit}"
    half = "" if math.isnan(value.half) else f" ± {value.half:.1f}"
    mean = f"{value.mean:+.1f}"
    return f"{mean.replace('-0.0', '0.0').replace('+0.0', '0.0')}{half} {unit}"


def p_value(p: float) -> str:
    """A p-value for a table.

    >>> p_value(0.0168), p_value(1e-5), p_value(math.nan)
    ('0.017', '< 0.001', '-')
    """
    return "-" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def listed(names: Sequence[str]) -> str:
    """Names in a row.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def count(number: int, what: str) -> str:
    """A number of things.

    >>> count(1, "task"), count(2000, "task")
    ('1 task', '2,000 tasks')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


KEYS = {
    r"(?:data\.)?loss_scale\.(.+)": r"factor on the \1 loss",
    r"(?:weighting\.)?weights\.(.+)": r"fixed weight of \1",
    r"weighting\.lr": "learning rate of the weights",
    r"lr": "learning rate",
    r"(sharing\.|training\.)?heads": "heads per",
    r"participation": "share of clients per round",
}
"""What keys of a config are called on an axis; others by their last part."""


def in_words(name: str) -> str:
    """A variant or the keys of a sweep, without the spelling of a config.

    >>> in_words("data.loss_scale.landmark"), in_words("local.head_steps, local.shared_steps")
    ('factor on the landmark loss', 'head steps, shared steps')
    >>> in_words("lr"), in_words("weighting.lr")
    ('learning rate', 'learning rate of the weights')
    >>> in_words("fedgradnorm weighting.lr=0.008 sharing.heads=task")
    'fedgradnorm, learning rate of the weights 0.008, heads per task'
    """
    keys = "=" not in name
    parts = name.split(", ") if keys else name.split(" ")
    return ", ".join(_in_words(part) if keys or "=" in part else part for part in parts)


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """What lines are called in a legend: :func:`in_words`, where that tells them apart.

    >>> list(labels_of(["a lr=1", "b x.steps=2", "b y.steps=2"]).values())
    ['a, learning rate 1', 'b x.steps=2', 'b y.steps=2']
    """
    said = {name: in_words(name) for name in names}
    count = Counter(said.values())
    return {name: text if count[text] == 1 else name for name, text in said.items()}


def _in_words(part: str) -> str:
    key, _, value = part.partition("=")
    for pattern, words in KEYS.items():
        if found := re.fullmatch(pattern, key):
            return f"{found.expand(words)} {value}".rstrip()
    return f"{key.rpartition('.')[2].replace('_', ' ')} {value}".rstrip()
