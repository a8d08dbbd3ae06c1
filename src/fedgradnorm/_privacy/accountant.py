"""What noise costs: epsilon of many noisy sums over random batches, and the noise for an epsilon.

One step takes each record with chance q into its batch (Poisson sampling). It clips what each of
them adds to a length C, and adds normal noise of standard deviation sigma C to the sum. How far the
outcomes with and without one record can be told apart is its privacy loss distribution. Steps are
composed by convolution (Koskela, Jälkö, Honkela 2020), with dp-accounting, rounded so that epsilon
is never too small. Two data sets are neighbors when one has a record more than the other.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from fedgradnorm._errors import ConfigError

LEAST_NOISE, MOST_NOISE = 0.2, 1e6
CLOSE = 1.002  # the noise that is found is at most so many times the least that would do
EXACT = 8  # steps up to which epsilon is never interpolated
FINE, COARSE, USUAL = 1e-4, 1e-3, 2000  # discretization of the privacy loss; steps of a usual run


class Steps(NamedTuple):
    """Equal noisy sums: the noise multiplier sigma, the sampling rate q, and how many of them.

    It is also a line of a ledger, as a list of three numbers.
    """

    noise: float
    rate: float
    times: int


@lru_cache(maxsize=4096)
def epsilon_of(steps: tuple[Steps, ...], delta: float) -> float:
    """Epsilon at ``delta`` of all these steps together; nothing costs nothing.

    >>> epsilon_of((), 1e-5)
    0.0
    """
    # The same with equal steps counted together; sums over all records are one normal noise.
    counts, information = dict[tuple[float, float], int](), 0.0
    for noise, rate, times in steps:
        if rate >= 1:
            information += times / noise**2
        elif times:
            counts[noise, rate] = counts.get((noise, rate), 0) + times
    whole = [Steps(information**-0.5, 1.0, 1)] if information else []
    taken = [*whole, *(Steps(*kind, count) for kind, count in counts.items())]
    if not taken:
        return 0.0
    if len(taken) == 1 and taken[0].rate >= 1:
        return gaussian_epsilon(taken[0].noise, delta)
    interval = _interval(sum(part.times for part in taken))
    loss, *others = (_loss(*part, interval) for part in taken)
    for other in others:
        loss = loss.compose(other)
    return float(loss.get_epsilon_for_delta(delta))


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Epsilon of one sum over all records: the root of the closed form of Balle and Wang (2018)."""
    from scipy.optimize import brentq

    loss, m = _mechanisms().GaussianPrivacyLoss(noise), 1 / noise
    if loss.get_delta_for_epsilon(0.0) <= delta:
        return 0.0
    high = m * m + 40 * m
    root = brentq(lambda e: loss.get_delta_for_epsilon(e) - delta, 0.0, high, xtol=1e-12)
    return float(root) * (1 + 1e-12)


def spent(steps: Steps, delta: float, before: tuple[Steps, ...] = ()) -> float:
    """An upper bound of epsilon after ``before`` and these steps, cheap enough for every round.

    Between powers of 2 it is interpolated, log epsilon over log steps: at most 1% above the exact
    value.
    """
    low = 1 << max(0, steps.times.bit_length() - 1)
    if steps.times <= EXACT or low == steps.times:
        return epsilon_of((*before, steps), delta)
    below, above = (
        epsilon_of((*before, steps._replace(times=count)), delta) for count in (low, 2 * low)
    )
    if below <= 0:  # too little to be told from nothing at this delta
        return above
    return float(below * (above / below) ** math.log2(steps.times / low))


def noise_for(epsilon: float, delta: float, plan: Callable[[float], tuple[Steps, ...]]) -> float:
    """The least noise multiplier with which the steps of ``plan(noise)`` cost at most ``epsilon``.

    With twice the noise everything in the plan must cost less.
    """

    def cost(noise: float) -> float:
        return epsilon_of(plan(noise), delta)

    if cost(MOST_NOISE) > epsilon:
        raise ConfigError(
            f"privacy: no noise keeps epsilon = {epsilon:g} at delta = {delta:g}: it is already "
            "spent, or too small for a single step; allow more, or train for fewer rounds"
        )
    high = 1.0
    while cost(high) > epsilon:
        high *= 2
    low = high / 2
    while low > LEAST_NOISE and cost(low) <= epsilon:
        low, high = low / 2, low
    while high > CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) > epsilon else (low, middle)
    return high


def _interval(count: int) -> float:
    """The width of a cell of the privacy loss: finer for many steps, whose roundings add up."""
    return max(FINE, min(COARSE, COARSE * USUAL / count))


def _loss(noise: float, rate: float, count: int, interval: float) -> Any:
    return _loss_of_one(noise, rate, interval).self_compose(count)


@lru_cache(maxsize=64)
def _loss_of_one(noise: float, rate: float, interval: float) -> Any:
    """That of one step: the slow part, and the same for any number of steps."""
    distribution = _mechanisms("privacy_loss_distribution")
    return distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    )


def _mechanisms(name: str = "privacy_loss_mechanism") -> Any:
    """A module of dp-accounting; a ConfigError where it is not installed."""
    try:
        return importlib.import_module(f"dp_accounting.pld.{name}")
    except ImportError as error:
        raise ConfigError(
            "privacy needs the package dp-accounting: pip install 'fedgradnorm[privacy]'"
        ) from error
