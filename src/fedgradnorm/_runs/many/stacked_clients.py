"""Trained clients whose heads are rows of a few tensors: each is made when it is asked for."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from fedgradnorm._client import Client, Scaler
from fedgradnorm._engines import Exported
from fedgradnorm._errors import RunFolderError
from fedgradnorm._runs.run import TrainedClient
from fedgradnorm.models._networks import linear_of

HeadRows = tuple[list[str], Tensor, Tensor]
"""Names of clients, and the weights and biases of their linear heads, a row each."""

SCALING = "scaling/"
"""What the names of a scaling's tensors begin with."""

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
        """The clients of a run, with their heads as training left them."""

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
    """The scalings among them, as tensors, by client."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(SCALING):
            client, _, key = name.removeprefix(SCALING).rpartition("/")
            found.setdefault(client, {})[key] = tensor
    return found
