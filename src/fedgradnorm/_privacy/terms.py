"""What is promised: ``Privacy`` to the examples of one client, ``ClientPrivacy`` to clients."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

from fedgradnorm._checks import bounded, flag, one_of, shown, whole
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._privacy.noise import NOT_PRIVATE, Source

Norm = Literal["corrected", "noised"]
LARGEST_EPSILON = 20.0
"""Above this, e^epsilon is so large that the promise needs an explicit flag."""


@dataclass(frozen=True)
class _Promise:
    """What both kinds of promises share."""

    epsilon: float
    delta: float
    clip: float = 1.0
    noise_multiplier: float | None = None
    noise: Source = "fresh"
    ledger: str | None = None
    large_epsilon: bool = False

    def __post_init__(self) -> None:
        bounded("privacy.epsilon", self.epsilon, high=1000, above=True)
        bounded("privacy.delta", self.delta, high=0.1, above=True)
        bounded("privacy.clip", self.clip, above=True)
        if self.noise_multiplier is not None:
            bounded("privacy.noise_multiplier", self.noise_multiplier, low=0.2, high=1e6)
        one_of("privacy.noise", self.noise, get_args(Source))
        if self.ledger is not None and (not isinstance(self.ledger, str) or not self.ledger):
            raise ConfigError(f"privacy.ledger must be the path of a folder, not {self.ledger!r}")
        if self.seeded and self.ledger is not None:
            raise ConfigError(
                "privacy.noise = 'seeded' is not private, so nothing it releases belongs in "
                "privacy.ledger, which adds up promises; leave one of them out"
            )
        flag("privacy.large_epsilon", self.large_epsilon)
        if self.epsilon > LARGEST_EPSILON and not self.large_epsilon:
            raise ConfigError(
                f"privacy.epsilon = {self.epsilon:g} promises next to nothing: it is above "
                f"{LARGEST_EPSILON:g}; lower it, or set large_epsilon = true"
            )

    @property
    def seeded(self) -> bool:
        """Whether anybody who knows the seed can subtract the noise."""
        return self.noise == "seeded"

    @property
    def words(self) -> str:
        """The promise for a log line."""
        words = f"epsilon {self.epsilon:g} at delta {self.delta:g}"
        return f"{words}, {NOT_PRIVATE}" if self.seeded else words

    def ledger_of(self, name: str) -> Path | None:
        """The ledger file of a client, or of client-level privacy; None where none is given."""
        if self.ledger is None:
            return None
        return Path(self.ledger).expanduser() / f"{quote(name, safe='')}.jsonl"

    def check_delta(self, count: int, what: str) -> None:
        """A ConfigError for delta > 1 / count: publishing one example whole would satisfy it."""
        if self.delta > 1 / max(count, 1):
            raise ConfigError(
                f"privacy.delta = {self.delta:g} is above 1 / {count}, one over the number of "
                f"{what}: it would allow revealing one of them completely; lower it"
            )


@dataclass(frozen=True)
class Privacy(_Promise):
    """Example-level differential privacy: what leaves a client hides any one training example.

    Everything the client reveals is (epsilon, delta)-differentially private: with and without one
    training example, the probability of any outcome differs at most by the factor e^epsilon, except
    for a probability of delta. Each step samples every example with probability batch / examples
    (Poisson sampling), clips each example's gradient to the norm ``clip``, and adds normal noise of
    standard deviation ``noise_multiplier`` x ``clip`` to their sum. Batches and noise come from the
    operating system's random generator, so private runs are not reproducible.

    Args:
        epsilon: the total budget; when it is spent, the client stops participating.
        delta: at most 1 / examples; 1e-5 is usual.
        clip: the gradient norm to which each example's gradient is clipped.
        noise_multiplier: by default the smallest with which ``rounds`` rounds cost epsilon.
        noise: ``"seeded"`` derives the noise from the run's seed, for experiments that must be
            repeated exactly. It is not private, and a deployment refuses it.
        ledger: a folder with a file per client, in which all runs on the client's data are charged
            to the same budget. It is created if it does not exist. Without it, epsilon covers one
            run only, which cannot be resumed. A deployed client has one in its state folder.
        large_epsilon: allow an epsilon above 20.
        rounds: the number of rounds to plan for; by default those of the run.
        loss_share: the part of each step's budget that reporting the loss costs; 0 reports no loss,
            and the client's loss ratio is always 1.
        loss_clip: the value to which each example's loss is clipped; by default twice that of a
            uniform guess among the classes, 4 for numbers, times the task's ``loss_scale``.
        norm: whether the gradient norm is ``corrected`` for the length of the noise, or ``noised``.

    >>> Privacy(epsilon=3, delta=1e-5).clip
    1.0
    """

    rounds: int | None = None
    loss_share: float = 0.1
    loss_clip: float | None = None
    norm: Norm = "corrected"

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded("privacy.loss_share", self.loss_share, high=0.9)
        one_of("privacy.norm", self.norm, get_args(Norm))
        if self.loss_clip is not None:
            bounded("privacy.loss_clip", self.loss_clip, above=True)
        if self.rounds is not None:
            whole("privacy.rounds", self.rounds, 1)


@dataclass(frozen=True)
class ClientPrivacy(_Promise):
    """Client-level differential privacy: the shared network hides whether a client participated.

    For federations of hundreds of clients. Each client is in a round with probability
    ``participation``. Its contribution to the round's sum is clipped to the norm ``clip``. The
    server adds normal noise of standard deviation ``noise_multiplier`` x ``clip`` to the sum, so it
    must be trusted: a deployment refuses it. Heads stay with clients.

    Args:
        epsilon: the total budget; the run ends when it is spent.
        delta: at most 1 / clients.
        clip: the norm to which each client's contribution is clipped.
        noise_multiplier: by default the smallest with which the run's rounds cost epsilon.
        noise: ``"seeded"`` as for :class:`Privacy`; it is not private.
        ledger: a folder whose file "clients.jsonl" all runs are charged to.
        large_epsilon: allow an epsilon above 20.

    >>> ClientPrivacy(epsilon=8, delta=1e-5).noise_multiplier is None
    True
    """


def privacy_of(table: Any, kind: type[Any] = Privacy) -> Any:
    """A table such as ``{"epsilon": 3, "delta": 1e-5}`` as terms of this kind; None stays None."""
    if table is None or isinstance(table, kind):
        return table
    if isinstance(table, _Promise):
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

    An example of ``several`` tasks is used in each of them, which the accounting does not add up.
    """
    if given is not None and several:
        raise ConfigError(
            f"client {name!r}: privacy is for a client with one task, and this one has several; "
            "make a client of each task, and divide epsilon among them"
        )
    try:
        found: Privacy | None = privacy_of(given)
        return found
    except ConfigError as error:
        raise ConfigError(f"client {name!r}: {error}") from None


def privacy_table(terms: _Promise) -> dict[str, Any]:
    """The terms as plain values, for a manifest; the path of the ledger is left out."""
    left_out = {"ledger": None, "noise": "fresh", "large_epsilon": False}
    table = {k: v for k, v in asdict(terms).items() if v is not None and k != "ledger"}
    table = {k: v for k, v in table.items() if k not in left_out or v != left_out[k]}
    return {**table, "promise": NOT_PRIVATE} if terms.seeded else table


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


_WRONG_PLACE = {
    Privacy: "ClientPrivacy is for all clients: give it to fgn.Server(privacy=...)",
    ClientPrivacy: "Privacy is for one client: give it to fgn.Client(..., privacy=...)",
}
