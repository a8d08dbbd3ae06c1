"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgradnorm._errors import choose
from fedgradnorm._round.seeding import number

Participation = float | list[str] | list[list[str]]
"""A share of the clients, a list of names, or a list of such lists, taken in turn."""


def participants(
    participation: Participation, seed: int, names: Sequence[str], round_number: int
) -> list[str]:
    """Who of ``names`` takes part in a round: drawn from the seed, or as listed.

    The answer keeps the order of ``names``. It depends on the arguments alone, so a resumed run or
    another machine draws the same clients.

    >>> participants(["cy", "ann"], 0, ["ann", "bob", "cy"], 7)
    ['ann', 'cy']
    """
    if not isinstance(participation, (int, float)):
        return _listed(participation, names, round_number)
    return some_of(names, float(participation), seed, "participation", round_number)


def some_of(names: Sequence[str], asked: float, *counter: object) -> list[str]:
    """So many of ``names``, in their order; which ones follows from the ``counter`` alone.

    ``asked`` is a whole number of them or, as a float, a share; at least one is drawn.

    >>> len(some_of(["ann", "bob", "cy"], 2, 0)), some_of(["ann", "bob"], 1.0, 0)
    (2, ['ann', 'bob'])
    """
    count = asked if isinstance(asked, int) else max(1, round(asked * len(names)))
    if count >= len(names):
        return list(names)
    generator = np.random.default_rng(number(*counter))
    chosen = generator.choice(len(names), size=count, replace=False)
    return [names[i] for i in sorted(chosen.tolist())]


def check_listed(participation: Participation, names: Sequence[str]) -> None:
    """A ConfigError unless every list of the plan names clients that there are."""
    if not isinstance(participation, (int, float)):
        for turn in range(max(1, len(participation))):
            _listed(participation, names, turn)


def _listed(
    plan: list[str] | list[list[str]], names: Sequence[str], round_number: int
) -> list[str]:
    """A fixed list of names, or a list of such lists taken in turn."""
    entry = plan[round_number % len(plan)] if plan and isinstance(plan[0], list) else plan
    wanted = set(entry)
    found = [name for name in names if name in wanted]
    if not found or len(found) < len(wanted):
        for name in entry or [""]:
            choose(str(name), names, "client in participation")
    return found
