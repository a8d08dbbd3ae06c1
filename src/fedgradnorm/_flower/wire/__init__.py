"""Clients in other organisations, over Flower: TLS, a key per client, one message a round.

The only room that imports flwr. Flower carries the messages; it does not carry code. Ordinarily a
SuperNode runs whatever program the server sends it, and whoever reaches a SuperLink may register
nodes and submit programs. Here neither holds: ``node`` answers with the program installed beside
the data, and ``link`` opens nothing but the nodes' own interface to the network.

messages   what is said, as Flower's records, and the checks of everything that arrives
keys       the authority's certificate, the server's, and a key pair per client
link       the SuperLink, closed to all but nodes and its operator
door       ... who gets in, before a request's body is read (requests: what a node may ask)
connections ... and how long a connection may say nothing
process    ... as a process beside the server's
operator   the server's side: register nodes, send, collect
collecting ... the answers, one client at a time (store: where they lie; parts: put together)
limits     how large a message may be
node       a client's side: receive, answer
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
