"""What a run releases about a client, round by round, and the noise that makes it affordable."""

from __future__ import annotations

from typing import NamedTuple

from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.accountant import Steps, epsilon_of, noise_for
from fedgradnorm._privacy.terms import ClientPrivacy, Privacy

FIRST = 10.0
"""The noise of the first loss, in units of a step's noise: it costs about a hundredth of a step."""
SPENT = 0.99
"""The part of a budget after which nothing useful is left: noise is found to within 0.2%."""


class Plan(NamedTuple):
    """``rounds`` rounds of ``steps`` steps, on batches that are sampled at ``rate``.

    With ``first`` the loss over all examples is released before them.
    """

    rate: float
    steps: int
    rounds: int
    first: bool = False

    def round(self, noise: float, first: bool = False, rounds: int = 1) -> tuple[Steps, ...]:
        """What a round releases; ``first``: it is the client's first one."""
        loss = (Steps(FIRST * noise, 1.0, 1),) if first and self.first else ()
        return (*loss, Steps(noise, self.rate, self.steps * rounds))

    def noise(self, terms: Privacy | ClientPrivacy, before: tuple[Steps, ...] = ()) -> float:
        """The noise multiplier: the given one, or the smallest that all rounds can afford.

        ``before`` is what was released earlier. A ConfigError if not even one round is affordable.
        """
        epsilon, delta = terms.epsilon, terms.delta
        already = epsilon_of(before, delta)
        if already > SPENT * epsilon:
            raise ConfigError(
                f"privacy: epsilon {already:.4g} of {epsilon:g} is already spent; use data that "
                "were never used, or raise epsilon"
            )
        if terms.noise_multiplier is None:
            return noise_for(
                epsilon, delta, lambda noise: (*before, *self.round(noise, True, self.rounds))
            )
        one = (*before, *self.round(terms.noise_multiplier, first=True))
        if epsilon_of(one, delta) > epsilon:
            raise ConfigError(
                f"privacy: a single round with noise_multiplier = {terms.noise_multiplier:g} "
                f"exceeds epsilon = {epsilon:g}; raise one of them, or omit noise_multiplier"
            )
        return terms.noise_multiplier
