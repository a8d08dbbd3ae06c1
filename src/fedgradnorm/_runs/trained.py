"""Trained clients, in memory and as files: a head and what is a client's own, no data."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedgradnorm._client import Client, Scaler
from fedgradnorm._engines import Exported
from fedgradnorm._errors import RunFolderError
from fedgradnorm._runs.checkpoint import write_tensors
from fedgradnorm._runs.files import check_folder
from fedgradnorm._runs.layout import CLIENTS, HEADS, NETWORK, client_file
from fedgradnorm.models._networks import linear_of
from fedgradnorm.tasks._kind import KINDS, Kind
from fedgradnorm.tasks._positions import Shape

HeadRows = tuple[list[str], Tensor, Tensor]
"""Names of clients, and the weights and biases of their linear heads, a row each."""

SCALING = "scaling/"
"""What the names of a scaling's tensors begin with."""


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


Finish = Callable[[str, nn.Linear], TrainedClient]
"""Makes of a client's name and head what is kept of the client."""


class StackedClients(Mapping[str, TrainedClient]):
    """Many trained clients in little memory.

    ``order`` is the clients' order, ``tables`` hold their heads, and ``finish`` adds what else is
    known of a client.
    """

    def __init__(
        self,
        order: Sequence[str],
        tables: Sequence[HeadRows],
        finish: Finish,
        scalings: Mapping[str, Scaler],
    ) -> None:
        self.tables, self._finish, self.scalings = list(tables), finish, scalings
        every = itertools.chain.from_iterable(names for names, _, _ in tables)
        self._row = {name: row for row, name in enumerate(every)}  # tables counted on end
        self._order = list(order)
        self._ends = list(itertools.accumulate(len(names) for names, _, _ in tables))

    @classmethod
    def of(cls, clients: Mapping[str, Client], tables: Sequence[HeadRows]) -> StackedClients:
        def finish(name: str, head: nn.Linear) -> TrainedClient:
            return TrainedClient.from_client(clients[name], Exported(head, {}))

        known = {name: client.scaling for name, client in clients.items()}
        scalings = {name: scaling for name, scaling in known.items() if scaling is not None}
        return cls(list(clients), tables, finish, scalings)

    def __getitem__(self, name: str) -> TrainedClient:
        row = self._row[name]
        table = bisect.bisect_right(self._ends, row)
        names, weight, bias = self.tables[table]
        row -= self._ends[table] - len(names)
        head = linear_of(weight[row].clone(), bias[row].clone())
        return self._finish(name, head)

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def tensors(self) -> tuple[dict[str, Tensor], str]:
        """All of it as tensors by name, and a text that says whose rows they are."""
        found: dict[str, Tensor] = {}
        for k, (_, weight, bias) in enumerate(self.tables):
            found |= {f"{k}.weight": weight, f"{k}.bias": bias}
        for name, scaling in self.scalings.items():
            found |= {f"{SCALING}{name}/{key}": t for key, t in scaling.state_dict().items()}
        return found, json.dumps([names for names, _, _ in self.tables])


def tables_of(path: Path, tensors: Mapping[str, Tensor], note: str) -> list[HeadRows]:
    """The heads that ``tensors`` returned; a RunFolderError if they are none."""
    try:
        tables = [
            (names, tensors[f"{k}.weight"], tensors[f"{k}.bias"])
            for k, names in enumerate(json.loads(note))
        ]
        for names, weight, bias in tables:
            fits = weight.ndim == 3 and weight.shape[:2] == bias.shape and len(bias) == len(names)
            if not fits or not all(isinstance(name, str) for name in names):
                raise ValueError("rows of heads do not fit their names")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error
    return tables


def scalings_of(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(SCALING):
            client, _, key = name.removeprefix(SCALING).rpartition("/")
            found.setdefault(client, {})[key] = tensor
    return found


def write_models(
    shared: nn.Module | None, clients: Mapping[str, TrainedClient], folder: Path, run: str
) -> None:
    """The shared network and each client's head as safetensors with plain state_dict names."""
    check_folder(folder / CLIENTS)
    (folder / CLIENTS).mkdir(exist_ok=True)
    if shared is not None:
        write_tensors(folder / NETWORK, dict(shared.state_dict()), run=run)
    if isinstance(clients, StackedClients):
        write_tensors(folder / HEADS, *clients.tensors(), run=run)
        return
    for name, client in clients.items():
        parts: dict[str, Mapping[str, Tensor]] = {
            "head": client.head.state_dict(),
            "buffers": client.buffers,
            "network": client.network.state_dict() if client.network else {},
            "scaling": client.scaling.state_dict() if client.scaling else {},
            "stem": client.stem.state_dict() if client.stem is not None else {},
        }
        tensors = {f"{part}.{key}": t for part, table in parts.items() for key, t in table.items()}
        write_tensors(client_file(folder, name), tensors, run=run)
