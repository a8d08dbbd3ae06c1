"""Losses and metrics of clients whose heads are rows: rows of many clients pass together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgradnorm._engines.roster.gathered import Reader, Rows
from fedgradnorm._engines.roster.registry import SCALE, Registry, Seated
from fedgradnorm._engines.scores import HostTargets, Scores, blaming
from fedgradnorm._round.client_round import FirstLoss, log_classes
from fedgradnorm._round.evaluation import evaluate, in_parts
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import Inputs, call, concatenated
from fedgradnorm.models._streamed.rows import Streamed, StreamedTargets
from fedgradnorm.tasks._split_metrics import Restoring

MEASURED = -1  # in place of the size of a client whose loss is known
ROWS_AT_ONCE = 4096  # of many clients in one pass of an evaluation


class Measuring:
    """Evaluates registered clients on a scratch copy of the network, which is for that alone."""

    def __init__(
        self,
        registry: Registry,
        reader: Reader,
        network: FlatNetwork,
        device: torch.device,
        first_loss: FirstLoss,
    ) -> None:
        self._registry, self._clients, self._reader = registry, registry.clients, reader
        self._network, self._device, self._first_loss = network, device, first_loss
        network.module.eval()

    def _rows(self, names: Sequence[str], split: str) -> list[Rows]:
        """Clients' rows where they lie; of training rows those that have labels."""
        if split == "train":
            return self._reader.rows(self._registry.places(names))
        held = [getattr(self._clients[name], split) for name in names]
        return [(x, y if isinstance(y, StreamedTargets) else torch.as_tensor(y)) for x, y in held]

    def _in_pieces(
        self, name: str, rows: Rows, scaling: Restoring | None = None
    ) -> dict[str, float]:
        """Loss and metrics of a client whose rows are read in pieces, as by the loop."""
        module = self._network.module
        x, y = as_input(rows[0], module, self._device), rows[1]
        y = y.placed(self._target) if isinstance(y, StreamedTargets) else self._target(y)
        task, head = self._clients[name].task, self._registry.head(name)
        return evaluate(task, module, head, x, y, scaling)

    def first_losses(self, shared: Tensor, some: Seated) -> Tensor:
        """F_0 of clients of one kind: over all of their training rows, or log C."""
        self._network.vector.copy_(shared)
        if self._first_loss == "log_classes":
            tasks = [self._clients[name].task for name in some.names]
            known = [log_classes(task) for task in tasks]
            return torch.tensor(known, dtype=torch.float64, device=self._device)
        sizes = self._reader.sizes[some.places]
        found = some.rows.new_empty(len(sizes), dtype=torch.float64)
        for k, rows in enumerate(self._reader.rows(some.places)):
            if isinstance(rows[0], Streamed):
                found[k], sizes[k] = self._in_pieces(some.names[k], rows)["loss"], MEASURED
        for size in dict.fromkeys(sizes[sizes != MEASURED].tolist()):
            alike = (sizes == size).nonzero()[0]
            found[alike] = self._losses_of_one_size(some.only(alike))
        return found

    def _losses_of_one_size(self, some: Seated) -> Tensor:
        """One product for all heads, where a row's loss asks for nothing of its client."""
        kind, names, rows = some.kind, some.names, some.rows
        inputs, targets = zip(*self._reader.rows(some.places), strict=True)
        z = self._features(inputs).view(len(names), len(inputs[0]), -1)
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

    @torch.no_grad()
    def _features(self, rows: Sequence[Inputs]) -> Tensor:
        """What the network makes of all these rows."""
        network = self._network.module
        x = as_input(concatenated(rows), network, self._device)
        return torch.cat([call(network, part) for part in in_parts(x)])

    def _target(self, y: Tensor) -> Tensor:
        like = self._network.vector
        return y.to(like) if y.is_floating_point() else y.to(self._device)

    @torch.no_grad()
    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of every client that has this split; rows of many pass together."""
        self._network.vector.copy_(shared)
        asked = (
            self._clients
            if names is None
            else sorted(names, key=self._registry.position.__getitem__)
        )
        wanted = [name for name in asked if getattr(self._clients[name], split) is not None]
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
        data = dict(zip(names, self._rows(names, split), strict=True))
        if isinstance(data[names[0]][0], Streamed):
            (name,) = names
            with blaming(name, split):
                scaling = self._clients[name].scaling
                return {name: self._in_pieces(name, data[name], scaling)}
        held: dict[int, Inputs] = {id(x): x for x, _ in data.values()}
        parts = self._features(list(held.values())).split([len(rows) for rows in held.values()])
        features = dict(zip(held, parts, strict=True))
        scores, like = Scores(split, HostTargets()), self._network.vector
        for kind, own, _, _, rows in self._registry.grouped(names):
            weight, bias = kind.shelf.table("weight")[rows], kind.shelf.table("bias")[rows]
            for k, name in enumerate(own):
                (source, y), client = data[name], self._clients[name]
                output = F.linear(features[id(source)], weight[k], bias[k])
                assert isinstance(y, Tensor)
                scores.add(client, output, y.to(like.dtype) if y.is_floating_point() else y)
        return scores.in_order(names)
