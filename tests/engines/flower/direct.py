"""Server and clients in one process, with the real messages between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import torch
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

import fedgradnorm as fgn
import toys
from fedgradnorm import _optimizers as optimizers
from fedgradnorm._flower.agreement import Agreement, sent_scalars
from fedgradnorm._flower.attendance import Patience
from fedgradnorm._flower.coordinator import Coordinator
from fedgradnorm._flower.federation_file import TaskTerms
from fedgradnorm._flower.group_heads import GroupHeads, group_heads
from fedgradnorm._flower.participant import Participant
from fedgradnorm._flower.wire.messages import Order
from fedgradnorm._flower.wire.node import answered
from fedgradnorm._round.bounds import Bounds
from fedgradnorm._round.server import ServerState
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting import Weighting

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as if in a run

Tamper = Callable[[str, Order, RecordDict], Any]
ANYBODY = Patience(minimum=1)
AS_SERVED = Bounds()
OPTIONS = {"rounds": 6, "batch_size": 8, "lr": 0.02, "seed": 3, "device": "cpu"}


class Direct:
    """An exchange without a network; ``tamper`` may change or drop what a client sends."""

    def __init__(self, participants: dict[str, Participant]) -> None:
        self.participants = participants
        self.sent: list[tuple[str, RecordDict]] = []
        self.tamper: Tamper = lambda *message: message[-1]

    def online(self):
        return list(self.participants)

    def ask(self, orders, seconds):
        found: dict[str, Any] = {}
        for name, order in orders.items():
            message = Message(order.records(), 1, "train", ttl=seconds)
            reply = answered(message, self.participants[name].respond)
            if reply.has_error():
                found[name] = reply.error.reason
                continue
            self.sent.append((name, reply.content))
            found[name] = self.tamper(name, order, reply.content)
        return found


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
        evaluations: int | None = None,
        **options: Any,
    ) -> None:
        self.clients = {client.name: client for client in clients()}
        self.settings = Settings(**{**OPTIONS, **options}, patience=evaluations)
        self.weighting = weighting or fgn.GradNorm()
        self.make, self.folder = make, folder
        assert self.settings.rounds is not None
        scalars = sent_scalars(self.weighting, self.settings)
        self.names = list(self.clients)
        self.agreement = self.agreed(scalars)
        self.exchange = Direct({name: self.participant(name) for name in self.names})
        several = {n: list(c.tasks) for n, c in self.clients.items() if c.tasks is not None}
        self.weighting.bind([row.name for c in self.clients.values() for row in c.rows])
        server = ServerState(
            FlatNetwork(make()).vector,
            self.weighting,
            optimizers.resolve(self.settings.server_optimizer, self.settings.lr),
            aggregate=self.settings.aggregate,
            step_with=self.settings.step_with,
            bounds=bounds,
            rates=self.settings.server_rates(),
        )
        given = (server, self.names, self.agreement, self.exchange, patience)
        self.server = self.coordinator(given, bounds, several)

    def coordinator(
        self, given: tuple[Any, ...], bounds: Bounds | None, several: dict[str, list[str]]
    ) -> Coordinator:
        return Coordinator(*given, heads=self._heads(bounds), tasks=several)

    def agreed(self, scalars: tuple[str, ...]) -> Agreement:
        return Agreement(self.settings, self.settings.rounds or 0, scalars, "agreed")

    def _heads(self, bounds: Bounds | None) -> GroupHeads | None:
        """As ``serve`` makes them, from what federation.toml would say of the clients."""
        tasks: dict[str, TaskTerms] = {}
        for client in (row for one in self.clients.values() for row in one.rows):
            terms = TaskTerms(client.task.outputs, [])
            tasks.setdefault(client.task_name, terms).clients.append(client.name)
        like = next(self.make().parameters()).detach()
        return group_heads(self.names, tasks, self.settings, 5, like, bounds)

    def participant(self, name: str) -> Participant:
        return Participant(self.make(), self.clients[name], self.agreement, self.folder / name)

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
