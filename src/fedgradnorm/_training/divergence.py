"""Divergence, called by its name: once for each client, with the rate to lower."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._round.settings import Settings

log = logging.getLogger("fedgradnorm")

FOLD = 1e4
"""How many times its first loss a client's loss is when the client diverges."""


class Divergence:
    """Which clients' losses have grown beyond all measure, and which were warned of already."""

    def __init__(self, settings: Settings) -> None:
        self.rates = rates(settings)
        self.named: dict[str, None] = {}  # in the order of the warnings

    def note(self, round_number: int, ratios: Mapping[str, float]) -> None:
        """Warn of clients whose loss is far above their first one."""
        for name, ratio in ratios.items():
            if ratio > FOLD:
                grown = f"diverges: its loss is {ratio:.2g} times its first one"
                self._warn(name, f"{grown} at round {round_number}; lower {self.rates}")

    def note_failed(
        self, round_number: int, failed: Iterable[str], taken: Mapping[str, int]
    ) -> None:
        """Warn of clients whose loss or gradient is not finite; ``taken`` rounds were before."""
        for name in failed:
            if taken[name]:
                what = f"diverges: its loss or gradient is no longer finite at round {round_number}"
                self._warn(name, f"{what}; lower {self.rates} or look at its data")
            else:
                what = "cannot train: its loss or gradient is not finite in its first round"
                self._warn(name, f"{what}; look at its data or lower {self.rates}")

    def _warn(self, name: str, words: str) -> None:
        if name not in self.named:
            self.named[name] = None
            log.warning("client %r %s", name, words)


def rates(settings: Settings) -> str:
    """The learning rates that move networks and heads, by the settings that they come from."""
    local = settings.local()
    tables = {
        "head_optimizer": local.head_optimizer or {},
        "server_optimizer": optimizers.resolve(settings.server_optimizer, settings.lr),
    }
    if local.steps_locally:
        tables["local_optimizer"] = local.local_optimizer or {}
    if all(table["lr"] == settings.lr for table in tables.values()):
        return f"lr (now {settings.lr:g})"
    return "lr of " + ", ".join(f"{key} (now {table['lr']:g})" for key, table in tables.items())
