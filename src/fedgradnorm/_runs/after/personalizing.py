"""A client that comes when the run is over: a head, or more, tuned on its own rows.

The shared network of the run stays as it is. What a client tunes is its own, chosen by its own
validation rows, as ``personalize`` does it at the end of a training.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._checks import shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._federation.checks import aligned
from fedgradnorm._federation.federation import Federation
from fedgradnorm._federation.heads import Patterns, first_head
from fedgradnorm._round.settings import Settings, completed
from fedgradnorm._runs.after.starting import (
    columns_of,
    known_head,
    known_stem,
    statistics_of,
    with_own_part,
)
from fedgradnorm._runs.blueprint import describe
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import UNTUNED, History, metric_columns
from fedgradnorm._runs.manifest import client_info
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.trained import TrainedClient
from fedgradnorm.models._dividing import divided
from fedgradnorm.tasks._task import described_task
from fedgradnorm.weighting import Equal

KEPT = ("batch_size", "head_optimizer", "head_init", "seed", "shared", "frozen")
"""Settings of the run that tuning goes by."""


@dataclass(frozen=True)
class Tuned:
    """What became of a client: as it is now, what it kept, and its rows for the history."""

    client: TrainedClient
    kept: dict[str, Any]
    rows: list[Row]


def personalized(run: Run, client: Client, how: Mapping[str, Any]) -> Run:
    """A copy of the run that has this client too, tuned; ``how`` is a table of personalize."""
    if not isinstance(client, Client):
        raise DataError(f"client must be an fgn.Client, not {shown(client)}")
    if client.tasks is not None:
        for row in client.rows:
            run = personalized(run, row, how)
        return run
    if (order := columns_of(run, client.name)) is not None:
        (client,) = aligned([client], Settings(rounds=1), order)
    stored = completed(run.manifest["settings"])
    table = {"lr": stored["lr"], **how}
    settings = Settings(
        rounds=1,
        lr=stored["lr"],
        executor="loop",
        personalize=table,
        **{name: stored[name] for name in KEPT},
    )
    tuned = _tuned(run, client, settings, stored["heads"], stored["head_own"])
    clients = {**run.clients, client.name: tuned.client}
    return replace(
        run,
        clients=clients,
        manifest=_manifest(run, client, settings, tuned),
        table=_history(run, client, tuned.rows),
        folder=None,
    )


def _tuned(run: Run, client: Client, settings: Settings, heads: str, head_own: Patterns) -> Tuned:
    """Tune the client in a federation of its own.

    ``heads`` and ``head_own`` are the run's: a new client begins with a head that others share.
    """
    name, before = client.name, run.clients.get(client.name)
    network = divided(_network(run, name), settings.shared, settings.frozen)
    group, again = _sharing(run, client, heads), run.manifest.get("personalized", {})
    # A head fits its network: the shared one is that of who has none of its own.
    apart = {one for one in group if one in run.clients and run.clients[one].network is not None}
    like = min(group, key=lambda one: (one in apart, one in again))
    head = known_head(run, network, client, settings, like)
    if head is not None and like != name:
        if Settings(**completed(run.manifest["settings"])).fixes_heads:
            # Tuned apart in the end: begin with the one that the network was trained with.
            head = first_head(network, replace(client, name=group[0]), settings, in_common=True)
        head = with_own_part(head, network, client, settings, head_own)
    client = replace(client, stem=known_stem(run, client))
    with_head = client if head is None else replace(client, head=head)
    federation = Federation(network, [with_head], Equal(), settings, torch.device("cpu"))
    federation.begin({name: _statistics(run, name, network)}, {})
    rows = _measured(run, federation, UNTUNED)
    kept = federation.personalize(0)[name]
    rows += _measured(run, federation)
    learned = federation.all_trained()[name]
    own = before.network if before is not None else None
    if learned.network is not None:
        own = federation.shared_network(learned.network)
    trained = TrainedClient.from_client(client, learned, own)
    return Tuned(trained, kept, rows)


def _network(run: Run, name: str) -> nn.Module:
    """The client's own network, where it has one, or the shared one."""
    if name in run.clients:
        return run.networks[name]
    if run.shared is None:
        raise ConfigError(
            f"client {name!r}: nothing was shared in this run, so there is no network for a client "
            f"that was not in it (clients: {', '.join(run.clients)}); train one with share='all'"
        )
    return run.shared


def _sharing(run: Run, client: Client, heads: str) -> list[str]:
    """Who has a head that the client may begin with: itself, or those that it shares one with.

    The head that these have in common was drawn for the first of them, who was in the training.
    """
    if client.name in run.clients or heads == "own":
        return [client.name]
    names = [
        name
        for name, info in run.manifest["clients"].items()
        if name in run.clients
        and (heads == "all" or _shared_task(name, info) == client.shared_task)
    ]
    if heads != "all":
        later = run.manifest.get("added", ())
        names.sort(key=lambda name: (name in later, name))
    return names or [client.name]


def _shared_task(name: str, info: Mapping[str, Any]) -> str:
    """What :attr:`Client.shared_task` was of a client of the run."""
    task: str = info.get("task", name)
    if task != name or "of" in info:
        return task
    labels, shape = info.get("labels"), info.get("shape", ())
    return described_task(info["kind"], info.get("outputs", 0), shape, labels)


def _statistics(run: Run, name: str, network: nn.Module) -> dict[str, Tensor]:
    """The client's own parts of the network; for one that was not there, the mean of all clients'.

    The run of a deployment's server has no clients, so there they are the network's own.
    """
    if name in run.clients:
        return statistics_of(name, run.clients[name], network)
    every = [statistics_of(other, one, network) for other, one in run.clients.items()]
    own = statistics_of(name, TrainedClient(nn.Identity(), ""), network)
    found = {key: [one[key] for one in every] or [value] for key, value in own.items()}
    return {key: _mean(values) for key, values in found.items()}


def _mean(values: Sequence[Tensor]) -> Tensor:
    """The mean, in float64; of counts the first."""
    if not values[0].is_floating_point():
        return values[0]
    return torch.stack([value.double() for value in values]).mean(dim=0).to(values[0].dtype)


def _measured(run: Run, federation: Federation, before: str = "") -> list[Row]:
    """Loss and metrics of the client's splits, as rows that follow the run's own."""
    (name,) = federation.names
    own = [row for row in run.table.rows if row["client"] == name]
    last, end = own[-1] if own else {}, run.table.rows[-1] if run.table.rows else {}
    here = {"round": end.get("round", 0), "epoch": end.get("epoch", 0.0), "client": name}
    met = {"weight": run.weights.get(name, 1.0)}
    met |= {key: last.get(key, 0) for key in ("samples", "bytes")}
    found = {split: federation.evaluate(split).get(name) for split in SPLITS}
    return [
        {**here, "split": before + split, **values, **met}
        for split, values in found.items()
        if values is not None
    ]


def _history(run: Run, client: Client, rows: Sequence[Row]) -> History:
    """The run's rows and the new ones; the run keeps its own table."""
    history = History(sorted({*metric_columns(run.table.rows), *client.task.metrics}))
    history.rows = [*run.table.rows, *rows]
    return history


def _manifest(run: Run, client: Client, settings: Settings, tuned: Tuned) -> dict[str, Any]:
    manifest = copy.deepcopy(run.manifest)
    if client.name not in manifest["clients"]:
        manifest.setdefault("added", []).append(client.name)
    manifest["clients"][client.name] = client_info(client)
    manifest["blueprints"]["heads"][client.name] = describe(tuned.client.head)
    if client.stem is not None:
        manifest["blueprints"].setdefault("stems", {})[client.name] = describe(client.stem)
    manifest.setdefault("personal", {})[client.name] = tuned.kept
    manifest.setdefault("personalized", {})[client.name] = settings.personalize
    return manifest
