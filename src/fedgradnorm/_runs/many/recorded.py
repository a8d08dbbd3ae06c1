"""Whose rows a history keeps, where it does not keep those of all clients."""

from __future__ import annotations

from collections.abc import Sequence

from fedgradnorm._client import Client
from fedgradnorm._errors import choose
from fedgradnorm._round.participation import some_of
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.many.spread import MANY

ALL_ROWS = 500
"""Clients whose rows are all kept, unless some are asked for; of more clients, those of a few."""


def recorded(clients: Sequence[Client], settings: Settings) -> frozenset[str] | None:
    """The rows that are kept by name, drawn from the seed or as named; None where all are.

    Several tasks of a client are recorded together; who names one of them gets that one.
    """
    asked = settings.record_clients
    if asked is None and len(clients) <= ALL_ROWS:
        return None
    owners = list(dict.fromkeys(client.owner for client in clients))
    if isinstance(asked, list):
        known = dict.fromkeys([*owners, *(client.name for client in clients)])
        wanted = {name if name in known else choose(name, known, "client in record_clients")
                  for name in asked}  # fmt: skip
    else:
        wanted = set(some_of(owners, MANY if asked is None else asked, settings.seed, "recorded"))
    kept = frozenset(c.name for c in clients if c.name in wanted or c.owner in wanted)
    return None if len(kept) == len(clients) else kept
