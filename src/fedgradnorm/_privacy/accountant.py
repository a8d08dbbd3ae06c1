"""What noise costs: epsilon of many noisy sums over random batches, and the noise for an epsilon.

One step takes each record with chance q into its batch (Poisson sampling), clips what each of them
adds to a length C, and adds normal noise of standard deviation sigma C to the sum. How far the
outcomes with and without one record can be told apart is its privacy loss distribution. Steps are
composed by convolution (Koskela, Jälkö, Honkela 2020), with dp-accounting, rounded so that epsilon
is never too small. Two data sets are neighbours when one has a record more than the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fedgradnorm._errors import ConfigError

LEAST_NOISE, MOST_NOISE = 0.2, 1e6
CLOSE = 1.002  # the noise that is found is at most so many times the least that would do
EXACT = 8  # steps up to which epsilon is never interpolated
FINE, COARSE, USUAL = 1e-4, 1e-3, 2000  # discretisation of the privacy loss; steps of a usual run


@lru_cache(maxsize=4096)
def epsilon_of(noise: float, rate: float, steps: int, delta: float, first: float = 0.0) -> float:
    """Epsilon at ``delta`` of ``steps`` noisy sums with noise multiplier ``noise`` (sigma).

    ``rate`` is q, the chance of a record to be in a batch. ``first`` is the noise multiplier of one
    more sum, over all records; 0: there is none. Nothing was released in no steps.
    """
    if steps == 0:
        return 0.0
    loss = _loss(noise, rate, steps, _interval(steps))
    if first:
        loss = loss.compose(_loss(first, 1.0, 1, _interval(steps)))
    return float(loss.get_epsilon_for_delta(delta))


def spent(noise: float, rate: float, steps: int, delta: float, first: float = 0.0) -> float:
    """Epsilon after so many steps, quick enough to be asked for in every round.

    Between powers of 2 it is interpolated, log epsilon over log steps: within 1% of the exact one.
    """
    low = 1 << max(0, steps.bit_length() - 1)
    if steps <= EXACT or low == steps:
        return epsilon_of(noise, rate, steps, delta, first)
    below = epsilon_of(noise, rate, low, delta, first)
    above = epsilon_of(noise, rate, 2 * low, delta, first)
    if below <= 0:  # too little to be told from nothing at this delta
        return above
    return float(below * (above / below) ** math.log2(steps / low))


def noise_for(
    epsilon: float, delta: float, rate: float, steps: int, first_factor: float = 0.0
) -> float:
    """The least noise multiplier with which ``steps`` steps cost at most ``epsilon`` at ``delta``.

    With ``first_factor`` there is one more sum over all records, with so many times the noise.
    """

    def cost(noise: float) -> float:
        return epsilon_of(noise, rate, steps, delta, first_factor * noise)

    high = 1.0
    while cost(high) > epsilon:
        high *= 2
        if high > MOST_NOISE:
            raise ConfigError(
                f"no noise makes {steps} steps cost epsilon = {epsilon:g} at delta = {delta:g}; "
                "allow more, or take fewer rounds"
            )
    low = high / 2
    while low > LEAST_NOISE and cost(low) <= epsilon:
        low, high = low / 2, low
    return _between(cost, epsilon, low, high)


def _between(cost: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """The least noise from ``low`` to ``high`` that costs at most ``epsilon``, or a little more.

    log epsilon over log noise is nearly a line, so the next try is on the line between both ends,
    a little toward the end that moves less.
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


def most_steps(
    epsilon: float, delta: float, noise: float, rate: float, most: int, first: float = 0.0
) -> int:
    """How many steps cost at most ``epsilon``, counted up to ``most``."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon_of(noise, rate, middle, delta, first) <= epsilon:
            low = middle
        else:
            high = middle - 1
    return low


def _interval(steps: int) -> float:
    """The width of a cell of the privacy loss: finer for many steps, whose roundings add up."""
    return max(FINE, min(COARSE, COARSE * USUAL / steps))


def _loss(noise: float, rate: float, steps: int, interval: float) -> Any:
    """The privacy loss distribution of so many equal steps."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise ConfigError(
            "privacy needs the package dp-accounting: pip install 'fedgradnorm[privacy]'"
        ) from error
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    )
    return one.self_compose(steps)
