"""What server and clients must have the same, and what leaves a client because of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._federation.heads import own_names
from fedgradnorm._methods import find_method
from fedgradnorm._round.settings import FIELDS, GROUPS, TOP, Settings, key_of, scope_of, ungrouped
from fedgradnorm.experiments._config.config_file import Config
from fedgradnorm.weighting import Needs, Weighting

if TYPE_CHECKING:
    from fedgradnorm._flower.private.private_terms import PrivateTerms

FORMAT = 1  # of messages and states; another one is another agreement
TUNING = ("steps", "lr", "what")
"""What ``personalize`` may say in such a federation; anything else of it must be off."""


@dataclass(frozen=True)
class Agreement:
    """A run as every participant has agreed to it.

    ``scalars`` is what a client sends besides its update: exactly what ``needs`` names.
    """

    settings: Settings
    rounds: int
    scalars: tuple[str, ...]
    digest: str
    private: PrivateTerms | None = None

    @property
    def sent(self) -> tuple[str, ...]:
        """All that may leave a client in a round."""
        if self.private is not None:
            return ("masked update", *(f"masked {name}" for name in self.scalars))
        own = self.settings.head_own
        kept = f" without {own if isinstance(own, str) else ', '.join(own)}" if own else ""
        head = () if self.settings.heads == "own" else (f"head{kept}",)
        return ("update", *self.scalars, *head)


def agree(config: Config, private: PrivateTerms | None = None) -> Agreement:
    """The agreement that a config stands for; a ConfigError if it cannot be run this way.

    With ``private`` terms the server is to see sums alone.
    """
    settings = config.settings
    for name in (name for name in FIELDS if not scope_of(name).deployed):
        value, only = getattr(settings, name), FIELDS[name].default
        if value != only:
            way = "leave it out" if only is None else f"leave it at {only!r}"
            raise ConfigError(f"{key_of(name)} = {value!r} cannot be run over the network; {way}")
    check_tuning(settings.personalize)
    made_here = settings.heads != "own" and not own_names(["bias"], settings.head_own)
    if made_here and settings.head_init == "targets":
        raise ConfigError(
            f"head_init = 'targets' cannot be run over the network with heads = {settings.heads!r}:"
            " the server makes the head that clients begin with together, and knows nobody's "
            "targets; leave it out, or keep a bias for each client (head_own = 'bias')"
        )
    if settings.rounds is None:
        raise ConfigError(
            "give rounds: how many rounds an epoch has depends on the clients' data, "
            "which the server does not know"
        )
    weighting = find_method(config.method).build(config.weighting)
    scalars = sent_scalars(weighting, settings)
    if private is not None:
        check_private(config.method, weighting, settings)
    return Agreement(settings, settings.rounds, scalars, _digest(config, private), private)


def check_private(method: str, weighting: Weighting, settings: Settings) -> None:
    """Refuse what a server that sees only sums cannot do."""
    if weighting.beyond_sums:
        raise ConfigError(
            f"method {method!r} cannot be run in a private federation: its server needs "
            f"{weighting.beyond_sums}; `fedgradnorm methods` says for which methods sums are enough"
        )
    for name in (name for name in FIELDS if not scope_of(name).private):
        value, only = getattr(settings, name), FIELDS[name].default
        if value != only:
            raise ConfigError(
                f"{key_of(name)} = {value!r} cannot be run in a private federation, whose server "
                f"sees only sums over all clients; leave it at {only!r}"
            )
    from fedgradnorm._flower.private.network_check import NetworkBound

    NetworkBound(settings)


def check_tuning(table: Mapping[str, Any] | None) -> None:
    """Refuse whatever clients cannot do on their own at the end."""
    for key, value in (table or {}).items():
        if key not in TUNING and value:
            raise ConfigError(
                f"personalize.{key} = {value!r} cannot be run over the network; leave it out"
            )


def sent_scalars(weighting: Weighting, settings: Settings) -> tuple[str, ...]:
    """What a client must send besides its update, and nothing more."""
    names: list[str] = []
    if Needs.SIZE in weighting.needs or settings.aggregate == "by_size":
        names.append("size")
    if Needs.LOSS in weighting.needs:
        names += weighting.losses
    if Needs.NORM in weighting.needs:
        names.append("grad_norm")
    return tuple(names)


def _digest(config: Config, private: PrivateTerms | None) -> str:
    table = config.table()
    settings = ungrouped({key: table[key] for key in (*TOP, *GROUPS) if key in table})
    table = {key: table[key] for key in ("method", "network", "weighting")}
    table["settings"] = {k: v for k, v in settings.items() if not scope_of(k).client_sets}
    if private is not None:
        table["private"] = private.digest
    text = json.dumps({"format": FORMAT, **table}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
