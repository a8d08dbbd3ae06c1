"""A run that begins where another one ended: its network, heads and statistics.

Optimizers, weights and first losses start anew, so what follows is a new training.
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
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError, ModelError
from fedgradnorm._federation.heads import (
    Patterns,
    combined,
    first_head,
    head_groups,
    make_head,
    own_names,
)
from fedgradnorm._round.settings import OPTIONS, TOP, Settings, completed, keywords, ungrouped
from fedgradnorm._runs.manifest import stored_weighting
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.trained import TrainedClient
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting import Weighting

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
            self.fingerprint, _some(self.known), _some(fresh),
        )  # fmt: skip


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
        one, other = _shape(values.get(name)), _shape(here.get(name))
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


def _shape(parameter: Tensor | None) -> tuple[int, ...] | None:
    return None if parameter is None else tuple(parameter.shape)


def _some(names: Sequence[str]) -> str:
    """The names; of many their number."""
    return ", ".join(names) if 0 < len(names) <= 20 else f"{len(names) or 'no'} clients"


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
