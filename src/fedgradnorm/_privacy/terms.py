"""What is promised: ``Privacy`` to the records of one client, ``ClientPrivacy`` to clients."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from fedgradnorm._checks import bounded, one_of, shown, whole
from fedgradnorm._errors import ConfigError, choose

Norm = Literal["corrected", "noised"]
SEED = "seed"


@dataclass(frozen=True)
class Privacy:
    """Record-level differential privacy of one client: what leaves it hides any one training row.

    Whatever the client tells others in the whole run is (epsilon, delta)-differentially private:
    with and without one row, the chance of any outcome differs at most by the factor e^epsilon,
    except for a chance of delta. Each step takes every row with chance batch / rows and clips each
    row's gradient to the length ``clip``. It then adds normal noise of standard deviation
    ``noise`` x ``clip`` to their sum.

    Args:
        epsilon: what may be spent in all; when it is spent, the client stops taking part.
        delta: much less than 1 / rows; 1e-5 is usual.
        clip: the longest gradient of one row that counts in full.
        noise: the noise multiplier; by default the least with which ``rounds`` rounds cost epsilon.
        rounds: how many rounds to plan for; by default those of the run that it is expected in.
        loss_share: the part of each step's budget that its loss costs; 0: no loss is told, and its
            loss ratio is always 1.
        loss_clip: the largest loss of one row that counts in full; by default twice that of a guess
            among the classes, 4 for numbers, times the task's ``loss_scale``.
        norm: whether the gradient norm is ``corrected`` for the length of the noise, or ``noised``.
        secret: a file with 32 secret bytes that decide batches and noise; it is made if it is not
            there. "seed": the run's seed decides them. Whoever knows the seed can repeat the run
            and take the noise away. The default is the seed in one process, and a file beside its
            state where a client joins a federation.

    >>> Privacy(epsilon=3, delta=1e-5).clip
    1.0
    """

    epsilon: float
    delta: float
    clip: float = 1.0
    noise: float | None = None
    rounds: int | None = None
    loss_share: float = 0.1
    loss_clip: float | None = None
    norm: Norm = "corrected"
    secret: str | None = None

    def __post_init__(self) -> None:
        _check_budget(self)
        bounded("privacy.loss_share", self.loss_share, high=0.9)
        one_of("privacy.norm", self.norm, get_args(Norm))
        if self.loss_clip is not None:
            bounded("privacy.loss_clip", self.loss_clip, above=True)
        if self.rounds is not None:
            whole("privacy.rounds", self.rounds, 1)


@dataclass(frozen=True)
class ClientPrivacy:
    """Client-level differential privacy: the shared network hides whether a client took part.

    For federations of hundreds of clients. Each client is in a round with chance ``participation``.
    What it adds to the round's sum is clipped to the length ``clip``. Normal noise of standard
    deviation ``noise`` x ``clip`` is added to the sum by the server. In a private federation the
    clients add it in shares, so that the server sees no sum without it. Heads stay with clients.

    Args:
        epsilon: what may be spent in all; the run ends when it is spent.
        delta: much less than 1 / clients.
        clip: the longest part of one client in a round's sum that counts in full.
        noise: the noise multiplier; by default the least with which the run's rounds cost epsilon.
        total: c > 0 tells the noisy sum of the clients' multipliers too, and the step is a mean
            weighted by them; by default the sum is divided by the expected number of clients.
        secret: as for :class:`Privacy`; a federation over the network has none, as every client
            draws new noise there.

    >>> ClientPrivacy(epsilon=8, delta=1e-5).noise is None
    True
    """

    epsilon: float
    delta: float
    clip: float = 1.0
    noise: float | None = None
    total: float = 0.0
    secret: str | None = None

    def __post_init__(self) -> None:
        _check_budget(self)
        bounded("privacy.total", self.total)


def _check_budget(terms: Privacy | ClientPrivacy) -> None:
    bounded("privacy.epsilon", terms.epsilon, high=1000, above=True)
    bounded("privacy.delta", terms.delta, high=0.1, above=True)
    bounded("privacy.clip", terms.clip, above=True)
    if terms.noise is not None:
        bounded("privacy.noise", terms.noise, low=0.2, high=1e6)
    if terms.secret is not None and (not isinstance(terms.secret, str) or not terms.secret):
        raise ConfigError(f"privacy.secret must be a file or 'seed', not {shown(terms.secret)}")


def privacy_of(table: Any, kind: type[Any] = Privacy) -> Any:
    """A table such as ``{"epsilon": 3, "delta": 1e-5}`` as terms of this kind; None stays None."""
    if table is None or isinstance(table, kind):
        return table
    if isinstance(table, (Privacy, ClientPrivacy)):
        raise ConfigError(_WRONG_PLACE[kind])
    if not isinstance(table, dict):
        raise ConfigError(f"privacy must be a table with epsilon and delta, not {shown(table)}")
    for key in table:
        choose(key if isinstance(key, str) else shown(key), _names(kind), "key of privacy")
    for key in ("epsilon", "delta"):
        if key not in table:
            raise ConfigError(f"privacy needs {key}, such as epsilon = 3, delta = 1e-5")
    return kind(**table)


def terms_of_client(name: str, given: Any, several: bool) -> Privacy | None:
    """What a client promises, a table read; a ConfigError names the client.

    A row of ``several`` tasks is told in each of them, which no account here adds up.
    """
    if given is not None and several:
        raise ConfigError(
            f"client {name!r}: privacy is for a client with one task, and this one has several; "
            "make a client of each task, and share epsilon out among them"
        )
    try:
        found: Privacy | None = privacy_of(given)
        return found
    except ConfigError as error:
        raise ConfigError(f"client {name!r}: {error}") from None


def privacy_table(terms: Privacy | ClientPrivacy) -> dict[str, Any]:
    """The terms as plain values; where a secret lies is left out."""
    return {k: v for k, v in asdict(terms).items() if v is not None and k != "secret"}


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


_WRONG_PLACE = {
    Privacy: "ClientPrivacy is for all clients: give it to fgn.Server(privacy=...)",
    ClientPrivacy: "Privacy is for one client: give it to fgn.Client(..., privacy=...)",
}
