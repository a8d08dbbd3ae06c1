"""What noise costs: epsilon of many noisy sums over random batches, and the noise for an epsilon.

One step takes each record with chance q into its batch (Poisson sampling). It clips what each of
them adds to a length C, and adds normal noise of standard deviation sigma C to the sum. How far the
outcomes with and without one record can be told apart is its privacy loss distribution. Steps are
composed by convolution (Koskela, Jälkö, Honkela 2020), with dp-accounting, rounded so that epsilon
is never too small. Two data sets are neighbours when one has a record more than the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from fedgradnorm._errors import ConfigError

LEAST_NOISE, MOST_NOISE = 0.2, 1e6
CLOSE = 1.002  # the noise that is found is at most so many times the least that would do
EXACT = 8  # steps up to which epsilon is never interpolated
FINE, COARSE, USUAL = 1e-4, 1e-3, 2000  # discretisation of the privacy loss; steps of a usual run


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
    taken = _merged(steps)
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
    """Epsilon of one sum over all records, in closed form (Balle and Wang 2018): the root of

    delta = Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m),    m = 1 / noise.
    """
    m = 1 / noise

    def excess(epsilon: float) -> float:
        log_tail = _log_normal_tail(m / 2 + epsilon / m)
        return _normal(m / 2 - epsilon / m) - math.exp(min(epsilon + log_tail, 0.0)) - delta

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, m * m + 40 * m
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _log_normal_tail(x: float) -> float:
    """log of the chance that a standard normal number is above ``x``, also far out."""
    if x < 30:
        return math.log(_normal(-x))
    return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi)) - 1 / (x * x)


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
    return _between(cost, epsilon, low, high)


def _between(cost: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """The least noise from ``low`` to ``high`` that costs at most ``epsilon``, or a little more.

    log epsilon over log noise is nearly a line, so the next try is on the line between both ends,
    a little toward the safe one.
    """
    at_low, at_high = cost(low), cost(high)
    while high > CLOSE * low and at_low > epsilon:
        slope = math.log(at_high / at_low) / math.log(high / low) if at_high > 0 else 0.0
        guess = low * (epsilon / at_low) ** (1 / slope) if slope else 0.0
        near = math.sqrt(CLOSE)
        middle = guess * near if low * near < guess < high / near else math.sqrt(low * high)
        value = cost(middle)
        if value > epsilon:
            low, at_low = middle, value
            continue
        high, at_high = middle, value
        if (value := cost(middle / CLOSE)) > epsilon:
            break
        high, at_high = middle / CLOSE, value
    return high


def _merged(steps: tuple[Steps, ...]) -> list[Steps]:
    """The same with equal steps counted together; sums over all records are one normal noise."""
    counts, information = dict[tuple[float, float], int](), 0.0
    for noise, rate, times in steps:
        if rate >= 1:
            information += times / noise**2
        elif times:
            counts[noise, rate] = counts.get((noise, rate), 0) + times
    whole = [Steps(information**-0.5, 1.0, 1)] if information else []
    return [*whole, *(Steps(*kind, count) for kind, count in counts.items())]


def _interval(count: int) -> float:
    """The width of a cell of the privacy loss: finer for many steps, whose roundings add up."""
    return max(FINE, min(COARSE, COARSE * USUAL / count))


def _loss(noise: float, rate: float, count: int, interval: float) -> Any:
    """The privacy loss distribution of so many equal steps."""
    return _loss_of_one(noise, rate, interval).self_compose(count)


@lru_cache(maxsize=64)
def _loss_of_one(noise: float, rate: float, interval: float) -> Any:
    """That of one step: the slow part, and the same for any number of steps."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise ConfigError(
            "privacy needs the package dp-accounting: pip install 'fedgradnorm[privacy]'"
        ) from error
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    )
