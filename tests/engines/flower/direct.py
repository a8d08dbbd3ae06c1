"""Server and clients in one process, with the real messages between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedgradnorm as fgn
import toys
from fedgradnorm._flower.agreement import Agreement, sent_scalars
from fedgradnorm._flower.attendance import Patience
from fedgradnorm._flower.client_session import ClientSession
from fedgradnorm._flower.coordinator import Coordinator
from fedgradnorm._flower.federation_file import TaskTerms
from fedgradnorm._flower.group_heads import GroupHeads
from fedgradnorm._flower.wire.messages import (
    Answer,
    Order,
    Refused,
    decode_answer,
    encode,
    unpack,
)
from fedgradnorm._flower.wire.transport import Exchange, InMemory
from fedgradnorm._round.bounds import Bounds
from fedgradnorm._round.server import ServerState
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting import Weighting

Tamper = Callable[[str, Order, dict[str, Any]], Any]
ANYBODY = Patience(minimum=1)
AS_SERVED = Bounds()
OPTIONS = {"rounds": 6, "batch_size": 8, "lr": 0.02, "seed": 3, "device": "cpu"}


class Direct(Exchange):
    """An exchange in memory; ``tamper`` may change or drop what a client sends.

    It is given facts and arrays of the message in one table, and may return that table, a reason
    in words, or a refusal.
    """

    def __init__(self, participants: dict[str, ClientSession]) -> None:
        self.participants = participants
        super().__init__(InMemory({name: partial(self._respond, name) for name in participants}))
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.tamper: Tamper = lambda *message: message[-1]

    def _respond(self, name: str, content: bytes) -> bytes:
        return self.participants[name].respond(content)

    def ask(self, orders, seconds):
        found = super().ask(orders, seconds)
        for name, content in found.items():
            if isinstance(content, bytes):
                self.sent.append((name, opened(content)))
                changed = self.tamper(name, orders[name], opened(content))
                found[name] = closed(changed) if isinstance(changed, dict) else changed
        return found


def opened(content: bytes) -> dict[str, Any]:
    """Facts and arrays of a message in one table."""
    facts, arrays = unpack(content)
    return {**facts, **arrays}


def closed(table: dict[str, Any]) -> bytes:
    """The message with these facts and arrays."""
    arrays = {k: v for k, v in table.items() if isinstance(v, np.ndarray)}
    return encode({k: v for k, v in table.items() if k not in arrays}, arrays)


def answered(client: ClientSession, order: Order) -> Answer:
    """What a client answers, through the encoded messages of both sides; Refused where nothing."""
    exchange = Exchange(InMemory({client.name: client.respond}))
    reply = exchange.ask({client.name: order}, 60.0)[client.name]
    if not isinstance(reply, bytes):
        raise Refused(str(reply))
    return decode_answer(reply, order, client.agreement.scalars, math.inf)


class Together:
    """A coordinator and its participants, who can be started anew from their files."""

    def __init__(
        self,
        folder: Path,
        weighting: Weighting | None = None,
        make: Callable[[], nn.Module] = toys.network,
        patience: Patience = ANYBODY,
        bounds: Bounds | None = AS_SERVED,
        clients: Callable[[], Sequence[fgn.Client]] = toys.clients,
        **options: Any,
    ) -> None:
        self.clients = {client.name: client for client in clients()}
        self.settings = Settings(**{**OPTIONS, **options})
        self.weighting = weighting or fgn.GradNorm()
        self.make, self.folder = make, folder
        assert self.settings.rounds is not None
        scalars = sent_scalars(self.weighting, self.settings)
        self.names = list(self.clients)
        self.agreement = self.agreed(scalars)
        self.exchange = Direct({name: self.participant(name) for name in self.names})
        self.weighting.bind(self.names)
        server = ServerState(
            FlatNetwork(make()).vector,
            self.weighting,
            bounds=bounds,
            **self.settings.server(),
        )
        given = (server, self.names, self.agreement, self.exchange, patience, self._heads(bounds))
        self.server = self.coordinator(given)

    def coordinator(self, given: tuple[Any, ...]) -> Coordinator:
        return Coordinator(*given)

    def agreed(self, scalars: tuple[str, ...]) -> Agreement:
        return Agreement(self.settings, self.settings.rounds or 0, scalars, "agreed")

    def _heads(self, bounds: Bounds | None) -> GroupHeads:
        """As ``serve`` makes them, from what federation.toml would say of the clients."""
        tasks: dict[str, TaskTerms] = {}
        for client in self.clients.values():
            terms = TaskTerms(client.task.outputs, [])
            tasks.setdefault(client.shared_task, terms).clients.append(client.name)
        dtype = next(self.make().parameters()).dtype
        return GroupHeads(self.names, tasks, self.settings, 5, dtype, bounds)

    def participant(self, name: str) -> ClientSession:
        return ClientSession(self.make(), self.clients[name], self.agreement, self.folder / name)

    def restart(self, name: str) -> None:
        """The client's process ends and another begins; its files stay."""
        self.exchange.participants[name] = self.participant(name)

    def run(self, rounds: int | None = None) -> torch.Tensor:
        while not self.server.done and rounds != 0:
            self.server.advance()
            rounds = None if rounds is None else rounds - 1
        return self.server.server.shared.data

    def results(self) -> dict[str, fgn.Run]:
        """What each client has kept on its own machine at the end."""
        self.server.finish()
        return {
            name: fgn.load(self.folder / name / self.server.run / "result") for name in self.names
        }
