"""A run that begins where another one ended: its network, heads and statistics.

Optimizers, weights and first losses start anew, so what follows is a new training.

A client that comes when the run is over tunes a head, or more, on its own examples. The shared
network is frozen; what the client keeps is chosen on its own validation examples.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import fedgradnorm
from fedgradnorm._checks import shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError, ModelError, listed
from fedgradnorm._federation.checks import aligned
from fedgradnorm._federation.federation import Federation
from fedgradnorm._federation.heads import (
    Patterns,
    combined,
    first_head,
    head_groups,
    make_head,
    own_names,
)
from fedgradnorm._round.settings import OPTIONS, TOP, Settings, completed, keywords, ungrouped
from fedgradnorm._runs.blueprint import describe
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import UNTUNED, History, metric_columns
from fedgradnorm._runs.manifest import client_info, stored_weighting
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.trained import TrainedClient
from fedgradnorm.models._dividing import divided, private_names
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.tasks._task import described_task
from fedgradnorm.weighting import Equal, Weighting

log = logging.getLogger("fedgradnorm")


class Start:
    """What a new run takes over: ``network`` and ``clients`` are those given, as the run left them.

    ``statistics`` are running statistics by client; ``networks`` those of clients that have one of
    their own, as flat vectors, where the new run has a place for them. ``known`` are the clients
    whose heads are kept; the others begin with a fresh head and the statistics of the network.
    """

    def __init__(
        self, run: Run, network: nn.Module, clients: Sequence[Client], settings: Settings
    ) -> None:
        self.fingerprint = fingerprint(run)
        alone = settings.share == "none"
        if run.shared is None and not alone:
            raise ConfigError(
                "start: nothing was shared in that run, so there is no network to share; start "
                "with share='none', or from a run that shares one"
            )
        self.network = network if run.shared is None else taken_over(run.shared, network)
        heads = _heads(run, self.network, clients, settings)
        self.known = list(heads)
        self.columns = columns_of(run)
        self.clients = [
            replace(c, stem=known_stem(run, c), head=heads.get(c.name, c.head)) for c in clients
        ]
        there = {c.name: run.clients[c.name] for c in clients if c.name in run.clients}
        private = [c.name for c in clients if c.privacy is not None and c.name in there]
        if private or settings.privacy is not None:
            who = f"client {private[0]!r} has privacy" if private else "server.privacy is set"
            raise ConfigError(
                f"{who}, and the run to start from was trained on the same data, which no budget "
                "here covers; start from a network that was trained on other data"
            )
        self.statistics = {
            name: statistics_of(name, one, self.network) for name, one in there.items()
        }
        own = {n: c.network for n, c in there.items() if c.network and (alone or settings.ditto)}
        self.networks = {n: FlatNetwork(taken_over(o, network, n)).vector for n, o in own.items()}

    def for_manifest(self) -> dict[str, Any]:
        """What run.json says of it."""
        return {"fingerprint": self.fingerprint, "heads": self.known}

    def announce(self) -> None:
        fresh = [client.name for client in self.clients if client.name not in self.known]
        log.info(
            "starting from run %s: its network, and its heads for %s; new heads for %s",
            self.fingerprint,
            *(listed(names, 20) if names else "no clients" for names in (self.known, fresh)),
        )


def columns_of(run: Run, name: str = "") -> tuple[str, ...] | None:
    """The order of the columns that a run's network knows; ``name`` may have its own network."""
    infos: Mapping[str, Mapping[str, Any]] = run.manifest.get("clients", {})
    if run.shared is None or name in infos:
        infos = {name: infos.get(name, {})}
    blueprints = run.manifest.get("blueprints", {}).get("stems", {})
    found = (
        one["columns"] for n, one in infos.items() if one.get("columns") and n not in blueprints
    )
    return tuple(columns) if (columns := next(found, None)) else None


def checked_start(start: object) -> Run | None:
    """The run to start from, if one is given; a ConfigError unless it is one."""
    if start is None or isinstance(start, Run):
        return start
    raise ConfigError(
        f"start must be a run, such as fgn.load('folder') returns, not {shown(start)}"
    )


def fingerprint(run: Run) -> str:
    """A hash of everything that was trained, which identifies a run that has no folder."""
    digest = hashlib.blake2b(digest_size=8)
    modules = {"": run.shared} if run.shared is not None else {}
    for name, client in run.clients.items():
        modules |= {f"{name} head": client.head}
        modules |= {f"{name} network": client.network} if client.network is not None else {}
    tables = {name: module.state_dict() for name, module in modules.items()}
    if run.shared is not None:
        named = dict(run.shared.named_parameters())
        private = {
            n: {k: t for k, t in c.buffers.items() if k in named} for n, c in run.clients.items()
        }
        tables |= {f"{name} private": parts for name, parts in private.items()}
    for name, table in tables.items():
        for key, tensor in table.items():
            if isinstance(tensor, Tensor):
                digest.update(f"{name} {key} {tensor.dtype} {tuple(tensor.shape)} ".encode())
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


@torch.no_grad()
def taken_over(trained: nn.Module, network: nn.Module, client: str = "") -> nn.Module:
    """A copy of ``network`` with the parameters of the trained one, which must be of its shape.

    Frozen parameters are in no checkpoint, so a resumed run would have those of the network that
    it is given: they must be the run's already.
    """
    whose = f"the network of client {client!r}" if client else "its network"
    taken, values = copy.deepcopy(network), dict(trained.named_parameters())
    here = dict(taken.named_parameters())
    for name in [*here, *(name for name in values if name not in here)]:
        pair = values.get(name), here.get(name)
        one, other = (None if part is None else tuple(part.shape) for part in pair)
        if one != other:
            raise ModelError(
                f"start: {whose} in that run has {name!r} of shape {one}, the network given {other}"
                "; give a network of the same shape"
            )
    for name, parameter in here.items():
        value = values[name].to(parameter.dtype)
        if not parameter.requires_grad and not torch.equal(parameter.cpu(), value.cpu()):
            raise ModelError(
                f"start: {name!r} of the network given is frozen at other values than {whose} in "
                "that run has; fill it first with network.load_state_dict(...)"
            )
        parameter.copy_(value)
    return taken


def statistics_of(name: str, client: TrainedClient, network: nn.Module) -> dict[str, Tensor]:
    """A client's own parts of the network: running statistics and private parameters.

    Where the run has none of a name, it is the network's.
    """
    found, parameters = {}, dict(network.named_parameters())
    private = [(key, parameters[key]) for key in private_names(network)]
    for key, own in [*network.named_buffers(), *private]:
        value = client.buffers.get(key, own)
        if value.shape != own.shape:
            raise ModelError(
                f"start: client {name!r} has {key!r} of its own of shape {tuple(value.shape)} in "
                f"that run, the network given {tuple(own.shape)}; give a network of the same shape"
            )
        found[key] = value.to(own.dtype).detach().clone()
    return found


def _heads(
    run: Run, network: nn.Module, clients: Sequence[Client], settings: Settings
) -> dict[str, nn.Module]:
    """The heads that are kept, by client; a group has that of its first client that the run knows.

    What clients keep of a shared head is their own as the run left it, or fresh for new clients.
    """
    heads = {client.name: known_head(run, network, client, settings) for client in clients}
    by_name = {client.name: client for client in clients}
    tasks = {client.name: client.shared_task for client in clients}
    for names in head_groups(tasks, "own" if settings.share == "none" else settings.heads):
        first = next((heads[name] for name in names if heads[name] is not None), None)
        if first is not None:
            for name in names:
                given = (network, by_name[name], settings, settings.head_own)
                heads[name] = with_own_part(first, *given, personal=heads[name])
    return {name: head for name, head in heads.items() if head is not None}


def known_head(
    run: Run, network: nn.Module, client: Client, settings: Settings, like: str = ""
) -> nn.Module | None:
    """The client's head as the run left it; None where it has none of this task and shape.

    ``like`` is the client whose head it is, where that is another one.
    """
    before = run.clients.get(like or client.name)
    if before is None or (before.kind, before.shape) != (client.task.kind, client.task.shape):
        return None
    head = make_head(network, client, settings.seed)
    saved = before.head.state_dict()
    if _shapes(saved) != _shapes(head.state_dict()):
        return None
    head.load_state_dict(saved)
    return head


def with_own_part(
    shared: nn.Module,
    network: nn.Module,
    client: Client,
    settings: Settings,
    own: Patterns,
    personal: nn.Module | None = None,
) -> nn.Module:
    """A copy of a shared head in which the client's own parameters are those of ``personal``.

    Without ``personal`` they begin as in a training. A head of another shape gives nothing.
    """
    names = own_names(dict(shared.named_parameters()), own)
    if names and personal is None:
        personal = first_head(network, client, settings)
    if personal is None or _shapes(personal.state_dict()) != _shapes(shared.state_dict()):
        return copy.deepcopy(shared)
    return combined(shared, personal, names)


def known_stem(run: Run, client: Client) -> nn.Module | None:
    """The client's first part as the run left it, where it has one of this shape; else as given."""
    before = run.clients.get(client.name)
    if client.stem is None or before is None or before.stem is None:
        return client.stem
    saved, stem = before.stem.state_dict(), copy.deepcopy(client.stem)
    if _shapes(saved) == _shapes(stem.state_dict()):
        stem.load_state_dict(saved)
    return stem


def _shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: getattr(value, "shape", None) for key, value in state.items()}


def added(
    run: Run,
    client: Client,
    others: Sequence[Client],
    weighting: Weighting | None,
    changes: Mapping[str, Any],
) -> Run:
    """``fgn.train(run, clients)`` with this client too, and what the run was trained by."""
    if not isinstance(client, Client):
        raise DataError(f"client must be an fgn.Client, not {shown(client)}")
    if run.shared is None:
        raise ConfigError("nothing was shared in this run, so no client can join it")
    absent = [name for name in run.clients if name not in {other.name for other in others}]
    if absent:
        raise ConfigError(
            f"a run holds no data, and client {absent[0]!r} of this one is not among those given; "
            "give all of them, or continue without it: fgn.train(run, clients)"
        )
    settings = completed(run.manifest["settings"])
    changed = ungrouped({k: v for k, v in changes.items() if k in (*TOP, *OPTIONS)})
    if "rounds" in changed or "epochs" in changed:
        settings = {**settings, "rounds": None, "epochs": None}
    if weighting is None and "method" not in changes:
        weighting = stored_weighting(run.manifest, "run.add(client, others, weighting=...)")
    how = keywords({**settings, **changed})
    given = list(changes.get("callbacks", ()))
    again = {type(one) for one in given}
    how["callbacks"] = [*(one for one in how["callbacks"] if type(one) not in again), *given]
    rest = {k: v for k, v in changes.items() if k not in (*TOP, *OPTIONS, "callbacks")}
    # The public function, since training is a layer above this one.
    return fedgradnorm.train(run, [*others, client], weighting=weighting, **how, **rest)


KEPT = ("batch_size", "head_optimizer", "head_init", "seed", "shared", "frozen")
"""Settings of the run that tuning goes by."""


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
    tuned, kept, rows = _tuned(run, client, settings, stored["heads"], stored["head_own"])
    history = History(sorted({*metric_columns(run.table.rows), *client.task.metrics}))
    history.rows = [*run.table.rows, *rows]  # the run keeps its own table
    manifest = copy.deepcopy(run.manifest)
    if client.name not in manifest["clients"]:
        manifest.setdefault("added", []).append(client.name)
    manifest["clients"][client.name] = client_info(client)
    manifest["blueprints"]["heads"][client.name] = describe(tuned.head)
    if client.stem is not None:
        manifest["blueprints"].setdefault("stems", {})[client.name] = describe(client.stem)
    manifest.setdefault("personal", {})[client.name] = kept
    manifest.setdefault("personalized", {})[client.name] = settings.personalize
    clients = {**run.clients, client.name: tuned}
    return replace(run, clients=clients, manifest=manifest, table=history, folder=None)


def _tuned(
    run: Run, client: Client, settings: Settings, heads: str, head_own: Patterns
) -> tuple[TrainedClient, dict[str, Any], list[Row]]:
    """The client, tuned in a federation of its own, what it kept, and its rows for the history.

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
    return TrainedClient.from_client(client, learned, own), kept, rows


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

    The shared head was drawn for the first of these names, which was part of the training.
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
    found = statistics_of(name, TrainedClient(nn.Identity(), ""), network)
    for key, own in found.items():
        values = [one[key] for one in every] or [own]
        found[key] = values[0]  # of counts the first
        if own.is_floating_point():
            mean = torch.stack([value.double() for value in values]).mean(dim=0)
            found[key] = mean.to(values[0].dtype)
    return found


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
