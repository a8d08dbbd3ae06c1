"""The account of one promise: how much noise it takes, what is spent, and when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.accountant import Steps, epsilon_of, most_steps, noise_for, spent

FIRST = 10.0
"""How many times the noise of a step the first loss has: it then costs about a hundredth."""


ALL = 0.99
"""The part of a budget after which nothing worth while is left: noise is found to within 0.2%."""


@dataclass(frozen=True)
class Budget:
    """What rounds of ``steps`` steps cost, each with rows taken at ``rate``.

    ``rounds`` is how many there are to be, ``first`` whether the loss over all rows is told before
    them, ``before`` what was spent earlier. ``noise`` is the multiplier sigma of a step; by default
    the least that will do. ``most`` is how many rounds the budget holds.
    """

    epsilon: float
    delta: float
    rate: float
    steps: int
    rounds: int
    first: bool = False
    given: float | None = None
    before: tuple[Steps, ...] = ()
    noise: float = field(init=False)
    most: int = field(init=False)

    def __post_init__(self) -> None:
        noise = self.given
        if noise is None and self.spent(0) > ALL * self.epsilon:
            raise ConfigError(
                f"privacy: epsilon {self.spent(0):.4g} of {self.epsilon:g} is spent already; allow "
                "more, or take data that was never used"
            )
        if noise is None:
            noise = noise_for(self.epsilon, self.delta, self._planned)
            most = self.rounds
        else:
            first, steps = self._parts(noise, self.rounds * self.steps)
            most = most_steps(self.epsilon, self.delta, steps, first) // self.steps
        if most < 1:
            raise ConfigError(
                f"privacy: a single round with noise = {noise:g} costs more than epsilon = "
                f"{self.epsilon:g}; allow more, or leave noise out"
            )
        object.__setattr__(self, "noise", noise)
        object.__setattr__(self, "most", most)

    def spent(self, rounds: int) -> float:
        """Epsilon after so many rounds of it."""
        if rounds == 0:
            return epsilon_of(self.before, self.delta)
        before, steps = self._parts(self.noise, rounds * self.steps)
        if rounds >= self.most:
            return epsilon_of((*before, steps), self.delta)
        return min(spent(steps, self.delta, before), self.spent(self.most))

    def steps_of(self, rounds: int) -> tuple[Steps, ...]:
        """What so many rounds of it are, for the account of a later run."""
        before, steps = self._parts(self.noise, rounds * self.steps)
        return (*before, steps) if rounds else self.before

    def _planned(self, noise: float) -> tuple[Steps, ...]:
        before, steps = self._parts(noise, self.rounds * self.steps)
        return (*before, steps)

    def _parts(self, noise: float, count: int) -> tuple[tuple[Steps, ...], Steps]:
        """What comes before the steps, and the steps."""
        first: Sequence[Steps] = (Steps(FIRST * noise, 1.0, 1),) if self.first else ()
        return (*self.before, *first), Steps(noise, self.rate, count)
