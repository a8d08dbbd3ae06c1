"""Clients in other organizations: TLS, a key per client, one message per round and client.

messages        what is said: one codec, with a schema and a size limit for each message
sum_messages    ... in a private federation, with the same codec
transport       how messages travel: the interface, and a transport in memory
flower          ... over Flower: the only module that imports it
reasons         why a client is not connected, in words
process         the SuperLink, as a process next to the server's
request_filter  what gets in there, before a request's body is read
keys            the authority's certificate, the server's, and a key pair per client
"""

from __future__ import annotations

import importlib.util
import os

from fedgradnorm._errors import ConfigError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
"""Flower reports nothing to anybody and looks for no updates."""


def check_installed() -> None:
    """A ConfigError that says what to install, unless Flower is here; it is made quiet first."""
    os.environ.update(QUIET)
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(
            "a federation over the network needs Flower: pip install 'fedgradnorm[flower]'"
        )
