"""Trained clients, in memory and as a file: a head and what else is a client's own, no data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines import Exported
from fedgradnorm._errors import RunFolderError
from fedgradnorm._runs.checkpoint import read_tensors, write_tensors
from fedgradnorm._runs.layout import HEADS, NETWORK
from fedgradnorm.models._networks import linear_of
from fedgradnorm.tasks._kind import KINDS, Kind
from fedgradnorm.tasks._targets import Shape

Tensors = dict[str, Tensor]
"""What is a client's own, by names such as ``head.weight``, ``buffers.mean``, ``stem.0.bias``."""

BLOCK = 1000
"""Clients whose tensors are put into one."""


@dataclass
class TrainedClient:
    """A client as it left training: its head and its own parts of the network, no data.

    These parts are running statistics and, where a part of the network is private, parameters.
    """

    head: nn.Module
    kind: str
    buffers: dict[str, Tensor] = field(default_factory=dict)
    network: nn.Module | None = None
    scaling: Any = None
    labels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    encoding: Any = None
    of: str | None = None
    shape: Shape = ()
    stem: nn.Module | None = None
    given_columns: tuple[str, ...] | None = None

    @classmethod
    def from_client(
        cls,
        client: Client,
        learned: Exported,
        network: nn.Module | None = None,
    ) -> TrainedClient:
        return cls(
            learned.head,
            client.task.kind,
            learned.parts,
            network,
            client.scaling,
            client.labels,
            client.columns,
            client.encoding,
            client.of,
            client.task.shape,
            learned.stem,
            client.given_columns,
        )

    @property
    def form(self) -> Kind:
        return KINDS[self.kind]

    def tensors(self) -> Tensors:
        parts = (("head", self.head), ("network", self.network), ("stem", self.stem))
        modules = {part: module.state_dict() for part, module in parts if module is not None}
        return own_tensors(self.scaling, **modules, buffers=self.buffers)


def own_tensors(scaling: Any, **parts: Mapping[str, Tensor]) -> Tensors:
    parts = parts if scaling is None else {**parts, "scaling": scaling.state_dict()}
    return {f"{part}.{key}": t for part, table in parts.items() for key, t in table.items()}


class StackedClients(Mapping[str, TrainedClient]):
    """Many trained clients in little memory: each is made of its tensors when it is asked for."""

    def __init__(
        self,
        order: Sequence[str],
        tensors: Callable[[str], Tensors],
        make: Callable[[str, Tensors], TrainedClient],
    ) -> None:
        self._order, self._known = list(order), frozenset(order)
        self.tensors, self._make = tensors, make

    @classmethod
    def of(
        cls, clients: Mapping[str, Client], tables: Sequence[tuple[list[str], Tensor, Tensor]]
    ) -> StackedClients:
        """``tables`` are names of clients with the weights and biases of their linear heads."""
        place = {name: (w, b, k) for names, w, b in tables for k, name in enumerate(names)}

        def tensors(name: str) -> Tensors:
            weight, bias, row = place[name]
            return own_tensors(
                clients[name].scaling, head={"weight": weight[row], "bias": bias[row]}
            )

        def make(name: str, own: Tensors) -> TrainedClient:
            head = linear_of(own["head.weight"].clone(), own["head.bias"].clone())
            return TrainedClient.from_client(clients[name], Exported(head, {}))

        return cls(list(clients), tensors, make)

    def __getitem__(self, name: str) -> TrainedClient:
        if name not in self._known:
            raise KeyError(name)
        return self._make(name, self.tensors(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


def write_models(
    shared: nn.Module | None, clients: Mapping[str, TrainedClient], folder: Path, run: str
) -> None:
    """The shared network with plain state_dict names, and one file of what clients have.

    Tensors of clients with the same keys and shapes are stacked: ``0.head.weight`` has a row for
    each client of group 0. The file's note has the names of each group.
    """
    if shared is not None:
        write_tensors(folder / NETWORK, dict(shared.state_dict()), run=run)
    groups: dict[Any, tuple[list[str], list[Tensors]]] = {}
    tensors = clients.tensors if isinstance(clients, StackedClients) else None
    for name in clients:
        own = tensors(name) if tensors is not None else clients[name].tensors()
        form = tuple((key, tensor.dtype, tensor.shape) for key, tensor in own.items())
        names, blocks = groups.setdefault(form, ([], []))
        names.append(name)
        blocks.append({key: tensor[None] for key, tensor in own.items()})
        if len(names) % BLOCK == 0:  # many small tensors would take more memory than their numbers
            one = {key: torch.cat([block[key] for block in blocks[-BLOCK:]]) for key in own}
            blocks[-BLOCK:] = [one]
    stacks = {
        f"{group}.{key}": [block[key] for block in blocks]
        for group, (_, blocks) in enumerate(groups.values())
        for key in blocks[0]
    }
    write_tensors(folder / HEADS, stacks, json.dumps([names for names, _ in groups.values()]), run)


def read_clients(folder: Path, run: str) -> tuple[list[str], Callable[[str], Tensors]]:
    """The clients that :func:`write_models` wrote, and the tensors of each."""
    path = folder / HEADS
    tensors, note = read_tensors(path, run)
    stacks: dict[int, Tensors] = {}
    try:
        for key, stack in tensors.items():
            group, _, rest = key.partition(".")
            stacks.setdefault(int(group), {})[rest] = stack
        groups = json.loads(note)
        place = {
            str(name): (g, k) for g, names in enumerate(groups) for k, name in enumerate(names)
        }
        lengths = {(g, len(stack)) for g, own in stacks.items() for stack in own.values()}
        if lengths - {(g, len(names)) for g, names in enumerate(groups)}:
            raise ValueError("its rows do not fit the names of its clients")
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error

    def own(name: str) -> Tensors:
        if name not in place:
            raise RunFolderError(f"{path} is damaged: it has no client {name!r}")
        group, row = place[name]
        return {key: stack[row] for key, stack in stacks.get(group, {}).items()}

    return list(place), own
