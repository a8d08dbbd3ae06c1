"""What server and clients must have the same, and what leaves a client because of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from fedgradnorm._errors import ConfigError
from fedgradnorm._round.settings import Settings
from fedgradnorm.experiments._config.config_file import Config
from fedgradnorm.experiments._methods import find_method
from fedgradnorm.weighting import Needs, Weighting

FORMAT = 1  # of messages and states; another one is another agreement
OWN = ("device", "engine", "log_every", "eval_every", "checkpoint_every", "record_conflict")
"""Settings that are each side's own business."""

ONLY = {
    "share": "all",
    "ditto": 0.0,
    "heads": "own",
    "final_head_steps": 0,
    "key": "client",
    "precision": "float32",
    "keep": "last",
    "personalize": None,
}
"""Settings that a federation over the network has only one value for."""

WHY = {
    "heads": "a head never leaves its client, so no server can average it",
    "keep": "the server sees no validation losses",
    "personalize": "a client's work ends with the last round",
}
"""What there is to say of one of them beside that."""


@dataclass(frozen=True)
class Agreement:
    """A run as every participant has agreed to it.

    ``scalars`` is what a client sends beside its update: exactly what the method's ``needs`` names.
    """

    settings: Settings
    rounds: int
    scalars: tuple[str, ...]
    digest: str


def agree(config: Config) -> Agreement:
    """The agreement that a config stands for; a ConfigError if it cannot be run this way."""
    settings = config.settings
    for name, value in ONLY.items():
        if getattr(settings, name) != value:
            why = f": {WHY[name]}" if name in WHY else ""
            raise ConfigError(
                f"{name} = {getattr(settings, name)!r} cannot be run over the network{why}; "
                f"leave it at {value!r}"
            )
    if settings.rounds is None:
        raise ConfigError(
            "give training.rounds: how many rounds an epoch has depends on the clients' data, "
            "which the server does not know"
        )
    weighting = find_method(config.method).build(config.weighting)
    scalars = sent_scalars(weighting, settings)
    return Agreement(settings, settings.rounds, scalars, _digest(config))


def sent_scalars(weighting: Weighting, settings: Settings) -> tuple[str, ...]:
    """What a client must send beside its update, and nothing more."""
    names: list[str] = []
    if Needs.SIZE in weighting.needs or settings.aggregate == "by_size":
        names.append("size")
    if Needs.LOSS in weighting.needs:
        names += weighting.losses
    if Needs.NORM in weighting.needs:
        names.append("gauge_norm")
    return tuple(names)


def _digest(config: Config) -> str:
    table = config.table()
    table = {key: table[key] for key in ("method", "seed", "network", "training", "weighting")}
    table["training"] = {k: v for k, v in table["training"].items() if k not in OWN}
    text = json.dumps({"format": FORMAT, **table}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
