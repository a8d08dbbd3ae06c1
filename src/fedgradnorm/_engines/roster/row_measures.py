"""Losses and metrics of clients whose heads are rows: rows of many clients pass together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgradnorm._engines.roster.gathered import Rows
from fedgradnorm._engines.roster.registry import SCALE, Alike, Registry
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.client_round import FirstLoss, log_classes
from fedgradnorm._round.evaluation import evaluate, represented
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import Inputs, concatenated
from fedgradnorm.models._streamed.rows import Streamed, StreamedTargets
from fedgradnorm.tasks._split_metrics import Restoring

ROWS_AT_ONCE = 4096  # of many clients in one pass of an evaluation


class Measuring:
    """Evaluates registered clients on a scratch copy of the network."""

    def __init__(
        self,
        registry: Registry,
        network: FlatNetwork,
        device: torch.device,
        first_loss: FirstLoss,
    ) -> None:
        self._registry, self._clients = registry, registry.clients
        self._network, self._device, self._first_loss = network, device, first_loss
        self._labelled: dict[str, Rows] = {}  # views, but of who has gaps

    def rows(self, name: str, split: str) -> Rows:
        """A client's rows where they lie; of training rows those that have labels."""
        if split != "train":
            x, y = getattr(self._clients[name], split)
            return x, y if isinstance(y, StreamedTargets) else torch.as_tensor(y)
        if name not in self._labelled:
            client = self._clients[name]
            x, y = client.train
            if client.size < len(y):
                x, y = client.learns_from()
            self._labelled[name] = x, y
        return self._labelled[name]

    def _in_pieces(
        self, name: str, rows: Rows, scaling: Restoring | None = None
    ) -> dict[str, float]:
        """Loss and metrics of a client whose rows are read in pieces, as by the loop."""
        module = self._network.module
        x, y = as_input(rows[0], module, self._device), rows[1]
        y = y.placed(self._target) if isinstance(y, StreamedTargets) else self._target(y)
        task, head = self._clients[name].task, self._registry.head(name)
        return evaluate(task, module, head, x, y, scaling)

    def first_losses(self, shared: Tensor, kind: Alike, names: list[str], rows: Tensor) -> Tensor:
        """F_0 of clients of one kind: over all of their training rows, or log C."""
        self._network.vector.copy_(shared)
        if self._first_loss == "log_classes":
            tasks = [self._clients[name].task for name in names]
            return torch.tensor([log_classes(task) for task in tasks], dtype=torch.float64)
        found = rows.new_empty(len(rows), dtype=torch.float64)
        train = [self.rows(name, "train") for name in names]
        held = [k for k, (x, _) in enumerate(train) if not isinstance(x, Streamed)]
        for k in set(range(len(names))).difference(held):
            found[k] = self._in_pieces(names[k], train[k])["loss"]
        for some in _by_size(held, [len(train[k][0]) for k in held]):
            found[some] = self._losses_of_one_size(kind, [names[k] for k in some], rows[some])
        return found

    def _losses_of_one_size(self, kind: Alike, names: list[str], rows: Tensor) -> Tensor:
        """One product for all heads, where a row's loss asks for nothing of its client."""
        pairs = [self.rows(name, "train") for name in names]
        inputs, targets = zip(*pairs, strict=True)
        x = as_input(concatenated(inputs), self._network.module, self._device)
        z = torch.cat(list(represented(self._network.module, x))).view(
            len(names), len(pairs[0][0]), -1
        )
        weight, bias = kind.shelf.table("weight")[rows], kind.shelf.table("bias")[rows]
        output = torch.baddbmm(bias[:, None], z, weight.transpose(1, 2))
        task = kind.like.task
        if task.is_plain and kind.seats.group.weights is None:
            y = torch.cat(targets).to(self._device)
            y = y.to(output.dtype) if y.is_floating_point() else y
            each = task.row_losses(output.flatten(0, 1), y).view(len(names), -1)
            return (each.mean(dim=1) * kind.shelf.table(SCALE)[rows]).double()
        own = [self._clients[name].task for name in names]
        losses = [
            t.measure(o, self._target(y))["loss"]
            for t, o, y in zip(own, output, targets, strict=True)
        ]
        return torch.tensor(losses, dtype=torch.float64, device=self._device)

    def _target(self, y: Tensor) -> Tensor:
        like = self._network.vector
        return y.to(like) if y.is_floating_point() else y.to(self._device)

    @torch.no_grad()
    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of every client that has this split; rows of many pass together."""
        self._network.vector.copy_(shared)
        wanted = [
            name
            for name, client in self._clients.items()
            if getattr(client, split) is not None and (names is None or name in names)
        ]
        results: dict[str, dict[str, float]] = {}
        for some in self._portions(wanted, split):
            results |= self._evaluate(some, split)
        return {name: results[name] for name in wanted}

    def _portions(self, names: Sequence[str], split: str) -> Iterator[list[str]]:
        """Clients whose rows fit into one pass; one that reads them in pieces is by itself."""
        some, rows = list[str](), 0
        for name in names:
            x = getattr(self._clients[name], split)[0]
            if isinstance(x, Streamed):
                yield [name]
                continue
            some.append(name)
            rows += len(x)
            if rows >= ROWS_AT_ONCE:
                yield some
                some, rows = [], 0
        if some:
            yield some

    def _evaluate(self, names: Sequence[str], split: str) -> dict[str, dict[str, float]]:
        """One pass; rows that several clients hold pass once."""
        data = {name: self.rows(name, split) for name in names}
        if isinstance(data[names[0]][0], Streamed):
            (name,) = names
            with _blaming(name, split):
                scaling = self._clients[name].scaling
                return {name: self._in_pieces(name, data[name], scaling)}
        held: dict[int, Inputs] = {id(x): x for x, _ in data.values()}
        x = as_input(concatenated(list(held.values())), self._network.module, self._device)
        parts = torch.cat(list(represented(self._network.module, x))).split(
            [len(rows) for rows in held.values()]
        )
        features = dict(zip(held, parts, strict=True))
        results = {}
        for kind, own, rows in self._registry.grouped(names):
            weight, bias = kind.shelf.table("weight")[rows], kind.shelf.table("bias")[rows]
            for k, name in enumerate(own):
                (source, y), client = data[name], self._clients[name]
                output = F.linear(features[id(source)], weight[k], bias[k])
                assert isinstance(y, Tensor)
                with _blaming(name, split):
                    results[name] = client.task.measure(output, self._target(y), client.scaling)
        return {name: results[name] for name in names}


@contextmanager
def _blaming(name: str, split: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"client {name!r}, {split} data: {error}") from error


def _by_size(numbers: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Numbers of clients that have as many rows."""
    found: dict[int, list[int]] = {}
    for number, size in zip(numbers, sizes, strict=True):
        found.setdefault(size, []).append(number)
    return list(found.values())
