"""Seconds of a round: contestants run in turn, so that a disturbed moment meets them all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Rounds = Callable[[int, int], object]  # rounds(first, count) runs some


def alternate(
    contestants: Mapping[str, Rounds],
    count: int,
    repeats: int,
    first: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of one round of each, once per repeat: a, b, a, b, ...

    A repeat is ``count`` rounds; one untimed repeat goes before them.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(repeats + 1):
        at = first + repeat * count
        for name, rounds in contestants.items():
            started = clock()
            rounds(at, count)
            times[name].append((clock() - started) / count)
    return {name: values[1:] for name, values in times.items()}


def ratio(above: list[float], below: list[float]) -> float:
    """Median of the ratios of neighbors in time."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def quartiles(above: list[float], below: list[float]) -> list[float]:
    """Where the middle half of those ratios lies; of fewer than two, both ends are the same."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    if len(ratios) < 2:
        return [ratios[0], ratios[0]]
    low, _, high = statistics.quantiles(ratios, method="inclusive")
    return [low, high]
