"""The rows that a round reads: which they are, and how they are taken from where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.batched.head_group import Chosen, HeadGroup
from fedgradnorm._round.batches import bases_of, check_rows_of_round, stretches
from fedgradnorm._round.presence import batches_of
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._input_rows import Inputs, concatenated
from fedgradnorm.models._streamed.rows import Streamed, Targets

Rows = tuple[Inputs, Targets]
Numbers = NDArray[np.int64]

WINDOWED = 200  # clients whose batches are drawn for many rounds at once, whoever takes part
ELSEWHERE = 1 << 62  # in place of the number of rows that are not in memory
WHOLE = 2  # times as many rows as are read: data up to this size is joined, not picked from


class Reader:
    """Training rows of all clients, and which of them a round reads.

    What follows from a client alone is found out when it is first asked for, and kept by its place
    in the order of all: a round then looks up a few numbers of each of its clients.
    """

    def __init__(
        self, clients: Sequence[Client], batch_size: int | None, seed: int, steps: int
    ) -> None:
        self._clients, self._seed, self._steps = list(clients), seed, steps
        self.sizes: Numbers = np.array([client.drawn for client in clients], dtype=np.int64)
        self._bases = np.zeros(len(clients), dtype=np.uint64)
        self._rows: list[Any] = [None] * len(clients)  # Rows, of those that are known
        self._known = np.zeros(len(clients), dtype=bool)
        self.held: Numbers = np.full(len(clients), ELSEWHERE)  # rows in memory, of those known
        few = len(clients) <= WINDOWED
        self._windows = batches_of(clients, batch_size, seed, steps) if few else None

    def rows(self, places: Numbers) -> list[Rows]:
        """Clients' labelled training rows, where they lie."""
        new = places[~self._known[places]]
        if new.size:
            self._find(new)
        return [self._rows[k] for k in places.tolist()]

    def _find(self, new: Numbers) -> None:
        """Rows of clients that were not asked for yet, and what their batches follow from."""
        owners = []
        for k in new.tolist():
            client = self._clients[k]
            owners.append(client.owner)
            y = client.train[1]
            whole = not isinstance(y, Tensor) or client.size == y.shape[0]
            self._rows[k] = client.train if whole else client.learns_from()
            if isinstance(y, Tensor) and not isinstance(client.train[0], Streamed):
                self.held[k] = client.size
        self._bases[new] = np.array(bases_of(self._seed, owners), dtype=np.uint64)
        self._known[new] = True

    def check(self, groups: Iterable[tuple[Numbers, int]]) -> None:
        """A ConfigError if clients, by their places and batch, read more in a round than fits."""
        read = held = 0
        for places, batch in groups:
            read += self._steps * batch * len(places)
            held += int(self.sizes[places].sum())
        check_rows_of_round(read, held, self._steps)

    def drawn(self, places: Numbers, batch: int, round_number: int) -> Numbers:
        """Row numbers [clients, steps, batch] of a round; :meth:`rows` has been asked for these."""
        if self._windows is not None:
            rows = self._windows.of_round(round_number)
            return np.stack([rows[self._clients[k].name] for k in places.tolist()])
        steps, sizes, bases = self._steps, self.sizes[places], self._bases[places]
        first, found = round_number * steps, np.empty((len(places), steps, batch), dtype=np.int64)
        for size in np.unique(sizes).tolist():
            alike = sizes == size
            found[alike] = stretches(bases[alike], size, batch, first, steps)
        return found


class Gathered:
    """Batches of some clients as one tensor; nothing else of their data is touched.

    ``groups`` are heads, their clients' names and rows, how many of these are in memory, and the
    row numbers [clients, steps, batch] that they read. A client whose steps visit its data more
    than once is taken whole. So is one that has few rows beside those, if the network passes none
    of them for it: joining many small tensors is one call, picking from each is many. Rows that lie
    elsewhere are always picked.
    """

    def __init__(
        self,
        groups: Sequence[tuple[HeadGroup, Sequence[str], Sequence[Rows], Numbers, Numbers]],
        network: nn.Module,
        device: torch.device,
    ) -> None:
        self._targets: dict[int, tuple[int, Tensor]] = {}
        self._stretches = list[tuple[Sequence[str], Numbers, Numbers]]()
        inputs, numbers, start = list[Inputs](), list[Tensor](), 0
        dtype = next(network.parameters()).dtype
        for group, names, rows, held, drawn in groups:
            steps, batch = drawn.shape[1:]
            reads = steps * batch
            whole = held <= reads * (WHOLE if steps == 1 else 1)
            sizes = np.where(whole, held, reads)
            begins = start + np.cumsum(sizes) - sizes
            within = np.where(whole[:, None, None], drawn, np.arange(reads).reshape(1, steps, -1))
            places = torch.from_numpy(within + begins[:, None, None])
            numbers.append(places.transpose(0, 1).flatten(1))
            own = list(rows) if whole.all() else _picked(rows, drawn, whole)
            inputs += [x for x, _ in own]
            y = torch.cat([y for _, y in own if isinstance(y, Tensor)])
            y = y.to(device, dtype) if y.is_floating_point() else y.to(device)
            self._targets[id(group)] = start, y
            self._stretches.append((names, begins, sizes))
            start += len(y)
        self.inputs = as_input(concatenated(inputs), network, device)
        self.rows = torch.cat(numbers, dim=1).to(device)

    @cached_property
    def begin(self) -> Mapping[str, int]:
        """Where each client's rows begin."""
        return {n: k for names, at, _ in self._stretches for n, k in _pairs(names, at)}

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """How many rows there are of each client."""
        return {n: k for names, _, of in self._stretches for n, k in _pairs(names, of)}

    def targets(self, group: HeadGroup, rows: Tensor, chosen: Chosen) -> Tensor:  # noqa: ARG002
        """The targets of some of the rows."""
        first, targets = self._targets[id(group)]
        return targets[rows - first]


def _picked(rows: Sequence[Rows], drawn: Numbers, whole: NDArray[np.bool_]) -> list[Rows]:
    """What is read of each client: all that it has, or the rows that are drawn."""
    picks = torch.from_numpy(drawn).flatten(1)
    return [
        (x, y) if all_of_it else (_some(x, some), _some(y, some))
        for (x, y), some, all_of_it in zip(rows, picks, whole.tolist(), strict=True)
    ]


def _some(values: Any, rows: Tensor) -> Any:
    return values.index_select(0, rows) if isinstance(values, Tensor) else values[rows]


def _pairs(names: Sequence[str], numbers: Numbers) -> Iterable[tuple[str, int]]:
    return zip(names, numbers.tolist(), strict=True)


class Ahead:
    """Has the rows of clients read that read them as they are asked for, before they are."""

    def __init__(self, names: Iterable[str], train: Iterable[Rows]) -> None:
        found = zip(names, (x for x, _ in train), strict=True)
        self._feeds = {name: x.feed for name, x in found if isinstance(x, Streamed)}

    def __bool__(self) -> bool:
        return bool(self._feeds)

    def expect(self, drawn: Mapping[str, Numbers]) -> None:
        """Begin to read these rows; each client's are read at once."""
        for name, rows in drawn.items():
            if name in self._feeds:
                self._feeds[name].expect([np.ascontiguousarray(rows).reshape(-1)])

    def rest(self, names: Iterable[str]) -> None:
        """Let go of what was read for these clients."""
        for name in names:
            if name in self._feeds:
                self._feeds[name].rest()
