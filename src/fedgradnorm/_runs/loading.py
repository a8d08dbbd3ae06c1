"""``fgn.load``: a saved run, ready to predict."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedgradnorm._errors import FedGradNormError, ModelError, RunFolderError
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.blueprint import Blueprint, rebuild, sketch
from fedgradnorm._runs.contents import read_contents
from fedgradnorm._runs.history import conflict_table, history_of
from fedgradnorm._runs.layout import (
    CLIENTS,
    CONFLICT,
    HEADS,
    MANIFEST,
    METRICS,
    NETWORK,
    SPREAD,
    client_file,
)
from fedgradnorm._runs.manifest import identity, read_manifest
from fedgradnorm._runs.many.spread import spread_table
from fedgradnorm._runs.many.stacked_clients import StackedClients, scalings_of, tables_of
from fedgradnorm._runs.reading import present
from fedgradnorm._runs.run import Run, TrainedClient
from fedgradnorm.tasks._kind import KINDS, OWN, Kind

Heads = Mapping[str, nn.Module]


def load(
    path: str | Path,
    network: nn.Module | None = None,
    heads: Heads | None = None,
    stems: Heads | None = None,
    kinds: Iterable[Kind] = (),
) -> Run:
    """A saved run, ready to predict.

    Networks made of torch.nn layers are rebuilt by themselves; for a module class of your own give
    an instance of it as ``network`` (and ``heads`` and ``stems`` by client), whose parameters are
    then filled. Kinds of tasks of your own are not in the folder either: give them as ``kinds``, or
    register them.
    """
    folder = Path(path)
    manifest = read_manifest(folder)  # without one it is no run folder
    if not present(folder / CLIENTS):
        raise RunFolderError(f"{folder} holds no trained network yet; resume the run to finish it")
    plans = _plans(folder, manifest)
    if network is None and plans["network"] is None:
        raise _own_class("network")
    own, run = {f"{OWN}{kind.name}": kind for kind in kinds}, identity(manifest)
    clients: Mapping[str, TrainedClient]
    if present(folder / HEADS):
        clients = _in_rows(folder, run, manifest["clients"], own)
    else:
        clients = {
            name: _client(folder, run, name, info, plans, network, heads or {}, stems or {}, own)
            for name, info in manifest["clients"].items()
        }
    shared = _shared(folder, run, plans["network"], network, clients)
    found = read_contents(folder)
    if found.faults:
        raise RunFolderError(f"{found.faults[0]}; put a copy of the file back")
    history, pairs, spread = (
        history_of(found.rows[METRICS], found.columns),
        conflict_table(),
        spread_table(),
    )
    pairs.append(found.rows[CONFLICT])
    spread.append(found.rows[SPREAD])
    return Run(clients, manifest, history, shared, manifest["finished"], pairs, spread, folder)


def _plans(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The blueprints of run.json; each client must have one of its head."""
    plans = manifest.get("blueprints", {})
    heads = plans.get("heads", {})
    wanted = [] if present(folder / HEADS) else manifest["clients"]
    lost = [f"heads.{name}" for name in wanted if name not in heads]
    lost += [] if "network" in plans else ["network"]
    if lost:
        raise RunFolderError(f"{folder / MANIFEST} is damaged: it has no blueprints.{lost[0]}")
    return {"network": plans["network"], "heads": heads, "stems": plans.get("stems", {})}


def _client(
    folder: Path,
    run: str,
    name: str,
    info: Mapping[str, Any],
    plans: Mapping[str, Any],
    network: nn.Module | None,
    heads: Heads,
    stems: Heads,
    kinds: Mapping[str, Kind],
) -> TrainedClient:
    tensors = checkpoint.read_tensors(client_file(folder, name), run)[0]
    what, saved = f"head of client {name!r}", _part(tensors, "head")
    head = _filled(heads.get(name), plans["heads"][name], saved, what)
    own = None
    if saved := _part(tensors, "network"):
        own = _filled(network, plans["network"], saved, f"network of client {name!r}")
    stem = None
    if name in plans["stems"]:
        saved = _part(tensors, "stem")
        stem = _filled(stems.get(name), plans["stems"][name], saved, f"stem of client {name!r}")
    found = _trained(name, info, head, _scaling(_part(tensors, "scaling"), name), kinds)
    found.buffers, found.network, found.stem = _part(tensors, "buffers"), own, stem
    return found


def _trained(
    name: str, info: Mapping[str, Any], head: nn.Module, scaling: Any, kinds: Mapping[str, Kind]
) -> TrainedClient:
    """What run.json says of a client, and its head."""
    named: dict[str, Any] = {
        key: tuple(info[key]) for key in ("labels", "columns", "given_columns") if info.get(key)
    }
    return TrainedClient(
        head,
        info["kind"],
        scaling=scaling,
        **named,
        encoding=_encoding(info.get("encoding"), name),
        of=info.get("of"),
        shape=tuple(info.get("shape", ())),
        own_kind=_own_kind(name, info["kind"], kinds),
    )


def _in_rows(
    folder: Path, run: str, infos: Mapping[str, Mapping[str, Any]], kinds: Mapping[str, Kind]
) -> StackedClients:
    """Many clients, whose heads are in one file."""
    tensors, note = checkpoint.read_tensors(folder / HEADS, run)
    tables = tables_of(folder / HEADS, tensors, note)
    lost = set(infos) - {name for names, _, _ in tables for name in names}
    if lost:
        raise RunFolderError(f"{folder / HEADS} is damaged: it has no head of {min(lost)!r}")
    scalings = {name: _scaling(own, name) for name, own in scalings_of(tensors).items()}

    def finish(name: str, head: nn.Linear) -> TrainedClient:
        return _trained(name, infos[name], head, scalings.get(name), kinds)

    return StackedClients(list(infos), tables, finish, scalings)


def _own_kind(client: str, kind: str, kinds: Mapping[str, Kind]) -> Kind | None:
    """The kind of a client's task, where it is not ours; it must be given or registered."""
    if not kind.startswith(OWN):
        return None
    name = kind.removeprefix(OWN)
    found = kinds.get(kind) or KINDS.get(name)
    if found is None:
        raise ModelError(
            f"client {client!r} has a kind of task of its own, {name!r}: give an instance, "
            "load(path, kinds=[...]), or import the module that registers it"
        )
    return found


def _shared(
    folder: Path,
    run: str,
    plan: Blueprint | None,
    network: nn.Module | None,
    clients: Mapping[str, TrainedClient],
) -> nn.Module | None:
    """The shared network, filled; None where every client has its own."""
    if present(folder / NETWORK):
        saved = checkpoint.read_tensors(folder / NETWORK, run)[0]
        shared = _filled(network, plan, saved, "network")
    elif isinstance(clients, StackedClients) or all(c.network is None for c in clients.values()):
        raise RunFolderError(f"{folder} has lost its {NETWORK}; resume the run to write it again")
    else:
        shared = None
    for name, client in () if isinstance(clients, StackedClients) else clients.items():
        _check_buffers(client.network or shared, client.buffers, name)
    return shared


def _filled(
    given: nn.Module | None, plan: Blueprint | None, tensors: dict[str, Tensor], what: str
) -> nn.Module:
    """A copy of the module given, or the one that the plan describes, with the saved tensors.

    A plan is first compared as a sketch that takes no memory: one line of a damaged plan could ask
    for more than the machine has.
    """
    if given is None and plan is None:
        raise _own_class(what)
    if given is None:
        _check_shapes(sketch(plan), tensors, what)
    module = copy.deepcopy(given) if given is not None else rebuild(plan)
    dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), None)
    try:
        module.to(dtype=dtype).load_state_dict(tensors)
    except (RuntimeError, TypeError) as error:
        raise _misfit(what, str(error)) from error
    return module


def _own_class(what: str) -> ModelError:
    kinds = {"head": "heads={...}", "stem": "stems={...}"}
    key = kinds.get(what.partition(" ")[0], "network=...")
    return ModelError(f"the {what} is a class of its own: give an instance, load(path, {key})")


def _check_shapes(module: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    wanted = {name: tuple(t.shape) for name, t in module.state_dict().items()}
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            raise _misfit(what, f"{name} is {found.get(name)}, the plan says {wanted.get(name)}")


def _misfit(what: str, reason: str) -> RunFolderError:
    return RunFolderError(f"the saved {what} does not fit: {' '.join(reason.split())[:200]}")


def _check_buffers(network: nn.Module | None, buffers: Mapping[str, Tensor], name: str) -> None:
    if network is None:
        raise RunFolderError(f"the saved client {name!r} has lost its network")
    shapes = {key: b.shape for key, b in [*network.named_buffers(), *network.named_parameters()]}
    for key, buffer in buffers.items():
        if shapes.get(key) != buffer.shape:
            raise _misfit(f"statistics of client {name!r}", f"{key} is {tuple(buffer.shape)}")


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    start = f"{part}."
    return {key[len(start) :]: t for key, t in tensors.items() if key.startswith(start)}


def _scaling(tensors: dict[str, Tensor], name: str) -> Any:
    if not tensors:
        return None
    from fedgradnorm.data._scaling import Scaling

    try:
        return Scaling.from_state_dict(tensors)
    except FedGradNormError as error:
        raise _misfit(f"scaling of client {name!r}", str(error)) from error


def _encoding(tables: list[dict[str, Any]] | None, name: str) -> Any:
    if not tables:
        return None
    from fedgradnorm.data._files.encoding import Encoding

    try:
        return Encoding.from_plain(tables)
    except FedGradNormError as error:
        raise _misfit(f"encoding of client {name!r}", str(error)) from error
