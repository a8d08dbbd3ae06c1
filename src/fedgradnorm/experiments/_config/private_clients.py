"""``[privacy]`` of a config: what its clients, or those that it names, promise their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgradnorm._checks import names
from fedgradnorm._client import Client
from fedgradnorm._errors import choose
from fedgradnorm._privacy.terms import Privacy, privacy_of

CLIENTS = "clients"


def terms_of(table: Mapping[str, Any]) -> Privacy | None:
    """The terms in ``[privacy]``, checked; None where it is empty."""
    given = {key: value for key, value in table.items() if key != CLIENTS}
    if CLIENTS in table:
        names("privacy.clients", table[CLIENTS])
    found: Privacy | None = privacy_of(given) if table else None
    return found


def promised(clients: Sequence[Client], table: Mapping[str, Any]) -> list[Client]:
    """The clients with these terms; who has terms of its own, in ``[[data.clients]]``, keeps them.

    ``clients`` in the table names those that promise it, by default all.
    """
    terms, known = terms_of(table), [client.name for client in clients]
    if terms is None:
        return list(clients)
    chosen = [choose(n, known, "client in privacy.clients") for n in table.get(CLIENTS, known)]
    return [
        replace(c, privacy=terms) if c.name in chosen and c.privacy is None else c for c in clients
    ]


def beside(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config with the folder of its privacy ledgers taken as relative to ``folder``."""
    table = config.get("privacy")
    ledger = table.get("ledger") if isinstance(table, dict) else None
    if not isinstance(ledger, str) or not ledger:
        return config
    place = str(folder.absolute() / Path(ledger).expanduser())
    return {**config, "privacy": {**config["privacy"], "ledger": place}}
