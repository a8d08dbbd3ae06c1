"""Clients that share one network, their server, and the engine that runs them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import optimizers
from fedgradnorm.client import Client
from fedgradnorm.data.batches import number
from fedgradnorm.engines import Engine, LoopEngine
from fedgradnorm.errors import ConfigError, DataError
from fedgradnorm.models import (
    FlatNetwork,
    as_input,
    check_head,
    find_gauge,
    linear_head,
    representation_size,
)
from fedgradnorm.reports import Reports
from fedgradnorm.server import ServerState, server_round
from fedgradnorm.settings import Settings
from fedgradnorm.weighting import ByTask, Needs, Weighting


class Federation:
    """One shared network and the clients that train it."""

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        weighting: Weighting,
        settings: Settings,
        device: torch.device,
    ) -> None:
        self.clients = list(clients)
        self.names = [client.name for client in clients]
        if settings.key == "task":
            weighting = ByTask(weighting, {c.name: c.task_name for c in clients})
        weighting.bind(self.names)
        self.network = copy.deepcopy(network)
        heads = {c.name: make_head(self.network, c, settings.seed) for c in clients}
        probe = as_input(torch.as_tensor(clients[0].train[0][:2]), self.network, "cpu")
        self.gauge = find_gauge(self.network, probe, settings.gauge)
        self.engine: Engine = LoopEngine(
            self.network,
            clients,
            heads,
            self.gauge,
            settings.local(),
            batch_size=settings.batch_size,
            seed=settings.seed,
            device=device,
        )
        self.server = ServerState(
            FlatNetwork(self.network, device).vector,
            weighting,
            optimizers.resolve(settings.server_optimizer, settings.lr),
            aggregate=settings.aggregate,
            order=settings.order,
        )

    def round(self, round_number: int, active: Sequence[str]) -> tuple[Reports, Tensor]:
        """One communication: clients work, the server weighs and steps."""
        shared = self.server.shared.data
        reports = self.engine.run_clients(shared, round_number, active)
        if len(reports.failed) == len(active):
            return reports, self.server.weighting.weight
        return reports, server_round(self.server, reports)

    def evaluate(self, split: str) -> dict[str, dict[str, float]]:
        """Loss and metrics of every client that has this split."""
        return self.engine.evaluate(self.server.shared.data, split)

    def bytes_per_round(self) -> int:
        """What one client and the server exchange in a round: ``shared`` down, the report up."""
        shared = self.server.shared
        scalars = sum(need in self.server.weighting.needs for need in SCALARS)
        return 2 * shared.numel() * shared.element_size() + 8 * scalars

    def shared_network(self) -> nn.Module:
        """The shared network as a module of its own, on the CPU."""
        flat = FlatNetwork(self.network)
        flat.vector.copy_(self.server.shared.data)
        return flat.module

    def state_dict(self) -> dict[str, Any]:
        """Server and clients, everything needed to go on."""
        return {"server": self.server.state_dict(), "clients": self.engine.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.server.load_state_dict(state["server"])
        self.engine.load_state_dict(state["clients"])


SCALARS = (Needs.SIZE, Needs.LOSS, Needs.NORM)
"""Needs that cost the client one number in its report."""


def make_head(network: nn.Module, client: Client, seed: int) -> nn.Module:
    """The client's own head, or a linear one whose start depends on seed and name alone."""
    x = as_input(torch.as_tensor(client.train[0][:2]), network, "cpu")
    features = representation_size(network, x, client.name)
    like = next(network.parameters()).detach()
    if client.head is not None:
        head = copy.deepcopy(client.head).to(dtype=like.dtype)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(seed, "head", client.name) % 2**63)
            head = linear_head(features, client.task.outputs).to(dtype=like.dtype)
    check_head(head, features, client.task.outputs, client.name, like)
    return head


def check_clients(clients: Sequence[Client], settings: Settings) -> None:
    """What concerns all clients together: there are some, with names of their own."""
    if not clients:
        raise DataError("no clients: give at least one fgn.Client")
    names = [client.name for client in clients]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two clients are named {twice!r}; every client needs a name of its own")
    if settings.first_loss == "log_classes":
        for client in clients:
            if client.task.kind != "classification":
                raise ConfigError(
                    f"first_loss='log_classes' needs classification, but client {client.name!r} "
                    f"does {client.task.kind}; use 'dataset' or 'first_round'"
                )
    settings.active(names, 0)


def federations(
    network: nn.Module,
    clients: Sequence[Client],
    weighting: Weighting,
    settings: Settings,
    device: torch.device,
) -> list[Federation]:
    """One federation of all clients, or with ``share="none"`` one for each client alone."""
    check_clients(clients, settings)
    groups = [list(clients)] if settings.share == "all" else [[client] for client in clients]
    return [
        Federation(network, group, copy.deepcopy(weighting), settings, device) for group in groups
    ]
