"""What privacy costs: a private federation next to a plain one, in one run.

    python benchmarks/private.py     # a few minutes

The real server, clients and messages in one process, without a network between them. Seconds are
those of one client and of the server in a round after the first; a network adds a polling interval
for each exchange. Bytes are of one client in a round, both ways.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from record import Row, about, begin, options, wanted, write
from torch import nn

import fedgradnorm as fgn
from fedgradnorm import _optimizers as optimizers
from fedgradnorm._flower.agreement import Agreement, sent_scalars
from fedgradnorm._flower.attendance import Patience
from fedgradnorm._flower.client_session import ClientSession
from fedgradnorm._flower.coordinator import Coordinator
from fedgradnorm._flower.group_heads import GroupHeads
from fedgradnorm._flower.private.private_rounds import PrivateCoordinator
from fedgradnorm._flower.private.private_terms import PrivateTerms
from fedgradnorm._flower.private.secure_sum_client import SecureSumClient
from fedgradnorm._flower.wire.transport import Exchange, InMemory
from fedgradnorm._masking.roster import make_key, read_signer
from fedgradnorm._methods import find_method
from fedgradnorm._round.server import ServerState
from fedgradnorm._round.settings import Settings
from fedgradnorm.models import network2
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting import Weighting

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "small": lambda: nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()),
    "Network 2": network2,
}
COUNTS, ROUNDS = (3, 10, 30), 3
METHODS = ("fedgradnorm-direct", "fedgradnorm")
COLUMNS = {
    "network": "network",
    "clients": "clients",
    "method": "method",
    "kind": "federation",
    "exchanges": "exchanges a round",
    "client_s": "s a round, one client",
    "server_s": "s a round, server",
    "megabytes": "MB a round, one client",
}


class Timed(Exchange):
    """An exchange in memory that knows how long clients took."""

    def __init__(self, participants: Mapping[str, ClientSession]) -> None:
        super().__init__(InMemory({name: one.respond for name, one in participants.items()}))
        self.busy, self.calls = 0.0, 0

    def ask(self, orders: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        self.calls += 1
        found = super().ask(orders, seconds)
        self.busy += sum(self.seconds[name] for name in orders)
        return found


def clients(count: int) -> list[fgn.Client]:
    rng, made = np.random.default_rng(0), []
    for number in range(count):
        x = rng.normal(size=(256, 256)).astype(np.float32)
        y = (x[:, number] > 0).astype(np.int64)
        made.append(fgn.Client(f"c{number:02d}", fgn.classification(2), train=(x, y)))
    return made


def federation(
    make: Callable[[], nn.Module], count: int, method: str, private: bool, folder: Path
) -> Coordinator:
    settings = Settings(rounds=ROUNDS, batch_size=64, seed=0, device="cpu")
    first = make()  # clients check that the server's is the one they would make
    known, weighting = clients(count), find_method(method).build()
    names = [client.name for client in known]
    weighting.bind(names)
    keys = {name: make_key(folder, f"{name}.key").text for name in names} if private else {}
    terms = PrivateTerms(keys) if private else None
    scalars = sent_scalars(weighting, settings)
    agreed = Agreement(settings, ROUNDS, scalars, "agreed", terms)

    def participant(client: fgn.Client) -> ClientSession:
        given = (first, client, agreed, folder / client.name)
        if not private:
            return ClientSession(*given)
        own: Any = find_method(method).build()
        return SecureSumClient(*given, read_signer(client.name, folder / f"{client.name}.key"), own)

    exchange = Timed({client.name: participant(client) for client in known})
    kind = PrivateCoordinator if private else Coordinator
    server = _server(first, weighting, settings)
    heads = GroupHeads(names, {}, settings, None, server.shared.dtype)  # each keeps its own
    return kind(server, names, agreed, exchange, Patience(minimum=count), heads)


def _server(network: nn.Module, weighting: Weighting, settings: Settings) -> ServerState:
    optimizer = optimizers.resolve(settings.server_optimizer, settings.lr)
    return ServerState(FlatNetwork(network).vector, weighting, optimizer)


def measured(network: str, count: int, method: str, private: bool) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        server = federation(NETWORKS[network], count, method, private, Path(folder))
        exchange: Any = server.exchange
        server.advance()  # its own keys and letters; memory is warm afterwards
        calls, seconds, sent = exchange.calls, exchange.busy, sum(server.bytes.values())
        began = time.perf_counter()
        while not server.done:
            server.advance()
        whole, rounds = time.perf_counter() - began, ROUNDS - 1
    own = exchange.busy - seconds
    return {
        "network": network,
        "clients": count,
        "method": method,
        "kind": "private" if private else "plain",
        "exchanges": (exchange.calls - calls) / rounds,
        "client_s": own / rounds / count,
        "server_s": (whole - own) / rounds,
        "megabytes": (sum(server.bytes.values()) - sent) / rounds / count / 1e6,
    }


def main() -> None:
    given = options(__doc__ or "").parse_args()
    begin(given)
    rows = []
    for network in ("small",) if given.quick else NETWORKS:
        for count in COUNTS[:1] if given.quick else COUNTS:
            for method in METHODS:
                for private in (False, True):
                    name = f"{network} {count} {method}"
                    if wanted(name, given):
                        rows.append(measured(network, count, method, private))
                        print(rows[-1], flush=True)
    load = {"load": os.getloadavg()[1]}  # of the last five minutes: others' work is in the seconds
    write(given.out / "private.json", {**about(), **load}, rows, COLUMNS)


if __name__ == "__main__":
    main()
