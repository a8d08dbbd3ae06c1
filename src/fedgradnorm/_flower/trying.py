"""``federation try``: the whole of it on one machine, each client a process of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._federation.checks import check_shared_tasks
from fedgradnorm._flower.coordinator import Coordinator
from fedgradnorm._flower.federation_file import several_tasks
from fedgradnorm._flower.join import joined
from fedgradnorm._flower.serving import Show, serve
from fedgradnorm._flower.setup import fill_client, init_federation
from fedgradnorm._options import options_of
from fedgradnorm.experiments._config.config_file import Config, make_config
from fedgradnorm.experiments._config.named_networks import NETWORKS
from fedgradnorm.weighting import Equal

HERE = ("localhost", "127.0.0.1")


def try_federation(
    config: Config,
    clients: list[Client],
    folder: Path,
    *,
    show: Show = None,
    waiting: Callable[[list[str], float], None] | None = None,
    private: bool = False,
) -> Coordinator:
    """Keys, server and clients over TLS on loopback; the run is kept in ``folder``."""
    config = with_inputs(config, clients)
    federation = folder / "federation"
    for client in clients:
        if client.of is not None:
            tasks = sum(other.of == client.of for other in clients)
            raise ConfigError(several_tasks(client.of, tasks))
    names = [client.name for client in clients]
    terms: dict[str, Any] = {"listen": "127.0.0.1", "tasks": tasks_of(config, clients)}
    homes = init_federation(federation, names, HERE, free_port(), private, **terms)
    for home in homes:
        fill_client(home, config.text(), config.table()["data"])
    with joined(homes, config.allowed):
        return serve(config, federation, folder, show=show, waiting=waiting)


def tasks_of(config: Config, clients: Sequence[Client]) -> dict[str, Any]:
    """What federation.toml must say of tasks: who has which, where heads are shared."""
    tasks: dict[str, Any] = {}
    if config.settings.heads == "own":
        return tasks
    check_shared_tasks(clients, config.settings, Equal())
    for client in clients:
        table = {"outputs": client.task.outputs, "clients": []}
        tasks.setdefault(client.shared_task, table)["clients"].append(client.name)
    return tasks


def with_inputs(config: Config, clients: list[Client]) -> Config:
    """The config with the network's input size written down: a server has no data to ask."""
    factory = NETWORKS.get(config.network.name)
    given = config.network.model_extra or {}
    if factory is None or "inputs" in given or "inputs" not in options_of(factory):
        return config
    table = config.table()
    table["network"] = {**table["network"], "inputs": int(clients[0].train[0][0].numel())}
    return make_config(table, allow=config.allowed)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
