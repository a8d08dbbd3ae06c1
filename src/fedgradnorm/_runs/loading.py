"""``fgn.load``: a saved run, ready to predict."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedgradnorm._checks import shown
from fedgradnorm._errors import FedGradNormError, ModelError, RunFolderError
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.blueprint import Blueprint, rebuild, sketch
from fedgradnorm._runs.files import present
from fedgradnorm._runs.history import history_of
from fedgradnorm._runs.layout import HEADS, MANIFEST, METRICS, NETWORK, SPREAD
from fedgradnorm._runs.manifest import identity, read_manifest
from fedgradnorm._runs.reader import read_contents
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.spread import spread_table
from fedgradnorm._runs.trained import StackedClients, Tensors, TrainedClient, read_clients
from fedgradnorm.models._networks import linear_of
from fedgradnorm.tasks._kind import KINDS

Heads = Mapping[str, nn.Module]


def load(
    path: str | Path,
    network: nn.Module | None = None,
    heads: Heads | None = None,
    stems: Heads | None = None,
) -> Run:
    """Load a saved run, ready to predict.

    Networks made of torch.nn layers are rebuilt automatically. For a custom module class, give an
    instance as ``network`` (and ``heads`` and ``stems`` by client), whose parameters are then
    filled. A custom kind of task is not stored either: define or import its class first.
    """
    if not isinstance(path, str | os.PathLike):
        raise RunFolderError(f"path must be the path of a run's folder, not {shown(path)}")
    folder = Path(path)
    manifest = read_manifest(folder)  # without one it is no run folder
    if not present(folder / HEADS):
        raise RunFolderError(f"{folder} holds no trained network yet; resume the run to finish it")
    models = _Models(folder, manifest, network, heads or {}, stems or {})
    clients = models.clients()
    shared = models.shared(clients)
    found = read_contents(folder)
    if found.faults:
        raise RunFolderError(f"{found.faults[0]}; restore the file from a copy")
    history, spread = history_of(found.rows[METRICS], found.columns), spread_table()
    spread.append(found.rows[SPREAD])
    return Run(clients, manifest, history, shared, manifest["finished"], spread, folder)


class _Models:
    """The trained modules of a folder: rebuilt from the plans in run.json, or those given."""

    def __init__(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        network: nn.Module | None,
        heads: Heads,
        stems: Heads,
    ) -> None:
        self.folder, self.run = folder, identity(manifest)
        self.infos: Mapping[str, Mapping[str, Any]] = manifest["clients"]
        plans = manifest.get("blueprints", {})
        self.head_plans, self.stem_plans = plans.get("heads", {}), plans.get("stems", {})
        if "network" not in plans:
            raise RunFolderError(f"{folder / MANIFEST} is damaged: it has no blueprints.network")
        self.plan, self.network = plans["network"], network
        if network is None and self.plan is None:
            raise _own_class("network")
        self.heads, self.stems = heads, stems

    def clients(self) -> Mapping[str, TrainedClient]:
        """All clients; of many, whose heads are all linear, each is made when it is asked for."""
        known, tensors = read_clients(self.folder, self.run)
        if lost := set(self.infos) - set(known):
            tensors(min(lost))  # which is an error
        if self.infos and not self.head_plans:
            return StackedClients(list(self.infos), tensors, self._client)
        return {name: self._client(name, tensors(name)) for name in self.infos}

    def _client(self, name: str, tensors: Tensors) -> TrainedClient:
        head = self._head(name, _part(tensors, "head"))
        found = self._trained(name, head, _restored("scaling", name, _part(tensors, "scaling")))
        found.buffers = _part(tensors, "buffers")
        if saved := _part(tensors, "network"):
            what = f"network of client {name!r}"
            found.network = _filled(self.network, self.plan, saved, what)
        if name in self.stem_plans:
            saved, what = _part(tensors, "stem"), f"stem of client {name!r}"
            found.stem = _filled(self.stems.get(name), self.stem_plans[name], saved, what)
        return found

    def _head(self, name: str, saved: Tensors) -> nn.Module:
        """A client's head; of many clients, whose heads are linear, no plans are stored."""
        if name in self.head_plans:
            what = f"head of client {name!r}"
            return _filled(self.heads.get(name), self.head_plans[name], saved, what)
        if self.head_plans or set(saved) != {"weight", "bias"}:
            place = self.folder / MANIFEST
            raise RunFolderError(f"{place} is damaged: it has no blueprints.heads.{name}")
        return linear_of(saved["weight"], saved["bias"])

    def _trained(self, name: str, head: nn.Module, scaling: Any) -> TrainedClient:
        """What run.json says of a client, and its head."""
        info = self.infos[name]
        if info["kind"] not in KINDS:
            raise ModelError(
                f"client {name!r} has a task of kind {info['kind']!r}, which is not defined here: "
                "define its class, or import the module that does, before loading the run"
            )
        named: dict[str, Any] = {
            key: tuple(info[key]) for key in ("labels", "columns", "given_columns") if info.get(key)
        }
        return TrainedClient(
            head,
            info["kind"],
            scaling=scaling,
            **named,
            encoding=_restored("encoding", name, info.get("encoding")),
            of=info.get("of"),
            shape=tuple(info.get("shape", ())),
        )

    def shared(self, clients: Mapping[str, TrainedClient]) -> nn.Module | None:
        """The shared network, filled; None where every client has its own."""
        shared, each = None, clients if self.head_plans else {}
        if present(self.folder / NETWORK):
            saved = checkpoint.read_tensors(self.folder / NETWORK, self.run)[0]
            shared = _filled(self.network, self.plan, saved, "network")
        elif all(client.network is None for client in each.values()):
            lost = f"{self.folder} has lost its {NETWORK}; resume the run to write it again"
            raise RunFolderError(lost)
        for name, client in each.items():
            if (network := client.network or shared) is None:
                raise RunFolderError(f"the saved client {name!r} has lost its network")
            parts = [*network.named_buffers(), *network.named_parameters()]
            shapes = {key: part.shape for key, part in parts}
            for key, buffer in client.buffers.items():
                if shapes.get(key) != buffer.shape:
                    what = f"statistics of client {name!r}"
                    raise _misfit(what, f"{key} is {tuple(buffer.shape)}")
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
        wanted = {name: tuple(t.shape) for name, t in sketch(plan).state_dict().items()}
        found = {name: tuple(t.shape) for name, t in tensors.items()}
        for name in sorted({*wanted, *found}):
            if wanted.get(name) != found.get(name):
                reason = f"{name} is {found.get(name)}, the plan says {wanted.get(name)}"
                raise _misfit(what, reason)
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
    return ModelError(f"the {what} is a custom class: give an instance, load(path, {key})")


def _misfit(what: str, reason: str) -> RunFolderError:
    return RunFolderError(f"the saved {what} does not fit: {' '.join(reason.split())[:200]}")


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    start = f"{part}."
    return {key[len(start) :]: t.clone() for key, t in tensors.items() if key.startswith(start)}


def _restored(what: str, name: str, saved: Any) -> Any:
    """A client's scaling or encoding, where it has one."""
    if not saved:
        return None
    try:
        if what == "scaling":
            from fedgradnorm.data._scaling import Scaling

            return Scaling.from_state_dict(saved)
        from fedgradnorm.data._files.encoding import Encoding

        return Encoding.from_plain(saved)
    except FedGradNormError as error:
        raise _misfit(f"{what} of client {name!r}", str(error)) from error
