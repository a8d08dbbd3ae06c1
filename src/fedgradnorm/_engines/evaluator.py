"""Losses and metrics of clients: over whole splits, with dropout off and statistics in use."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedgradnorm._engines.examples import Block, Examples
from fedgradnorm._engines.parts import CLASSES, SCALE, ClientPart
from fedgradnorm._engines.scores import HostTargets, Scores, blaming
from fedgradnorm._round.evaluation import answers, evaluate, in_parts, represented
from fedgradnorm._state.table import BUFFER, NETWORK, OWN, ClientTable
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._given_inputs import form_words
from fedgradnorm.models._input_rows import Inputs, call, concatenated, has_sequences, row_form
from fedgradnorm.models._streamed.rows import Streamed

ROWS_AT_ONCE = 4096  # examples of many clients in one pass


class Evaluator:
    """Evaluates the rows of a client table on the clients' examples.

    ``network`` is a scratch copy of the shared network.
    """

    def __init__(
        self, table: ClientTable[ClientPart], examples: Examples, network: FlatNetwork
    ) -> None:
        self._table, self._examples, self._network = table, examples, network
        self._statistics = bool(network.buffers())
        self._host_targets = HostTargets()

    @torch.no_grad()
    def training_losses(self, group: Block, shared: Tensor, together: bool) -> Tensor:
        """Losses over all training examples; ``shared`` is [P], or networks [clients, P].

        With ``together`` clients of one size pass the network in one call, where they can.
        """
        part, names, clients = group.part, group.names, self._table.clients
        found = torch.empty(len(names), dtype=torch.float64, device=shared.device)
        together = together and shared.ndim == 1 and len(names) > 1 and self._shares_features(part)
        if not together or any(isinstance(clients[n].train[0], Streamed) for n in names):
            for k, name in enumerate(names):
                front, head = self._modules(name, shared if shared.ndim == 1 else shared[k])
                pair = self._examples.split(name, "train")
                assert pair is not None
                found[k] = evaluate(clients[name].task, front, head, *pair)["loss"]
            return found
        self._network.use(shared)
        sizes = np.array([self._examples.batches.sizes[name] for name in names])
        for size in dict.fromkeys(sizes.tolist()):
            here = (sizes == size).nonzero()[0]
            some = group.only(here)
            x, y = self._examples.whole(some.names)
            constant = [key for key in (SCALE, CLASSES) if key in part.rows]  # no padding here
            row = part.rows.take(some.index, [OWN, *part.buffers, *constant])
            own = part.own.views(row[OWN]) | {k.removeprefix(BUFFER): row[k] for k in part.buffers}
            outputs = part.heads_outputs(own, self._features(part, x), len(some.names))
            found[torch.from_numpy(here).to(found.device)] = part.losses(outputs, y, row).double()
        return found

    @torch.no_grad()
    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all.

        A client's own network is used where it has one. Examples of clients that share everything
        in front of their heads pass the network together; examples that several hold pass once.
        """
        clients, position = self._table.clients, self._table.position.__getitem__
        wanted = clients if names is None else sorted(names, key=position)
        asked = [name for name in wanted if getattr(clients[name], split) is not None]
        scores = Scores(split, self._host_targets)
        together = list[str]()
        for group in self._table.group(asked):
            rows, alike = group.part.rows, self._shares_features(group.part)
            own = [False] * len(group.names)
            if NETWORK in rows:
                own = (~rows[NETWORK][group.index, 0].isnan()).tolist()
            for name, has_network in zip(group.names, own, strict=True):
                x = getattr(clients[name], split)[0]
                if has_network or not alike or isinstance(x, Streamed) or has_sequences(x):
                    self._evaluate_one(scores, shared, name, split)
                else:
                    together.append(name)
        some, held, form = list[str](), 0, ""
        for name in sorted(together, key=position):  # as many as fit one pass
            x = getattr(clients[name], split)[0]
            own_form = form_words(row_form(x))
            if some and (held + len(x) > ROWS_AT_ONCE or own_form != form):
                self._evaluate_together(scores, shared, some, split)
                some, held = [], 0
            some.append(name)
            held, form = held + len(x), own_form
        if some:
            self._evaluate_together(scores, shared, some, split)
        return scores.in_order(asked)

    def _evaluate_one(self, scores: Scores, shared: Tensor, name: str, split: str) -> None:
        client, pair = self._table.clients[name], self._examples.split(name, split)
        assert pair is not None
        x, y = pair
        front, head = self._modules(name, shared)
        with blaming(name, split):
            if isinstance(x, Streamed):
                scores.put({name: evaluate(client.task, front, head, x, y, client.scaling)})
                return
            output = answers(head, represented(front, x))
        assert isinstance(y, Tensor)
        scores.add(client, output, y)

    def _evaluate_together(
        self, scores: Scores, shared: Tensor, names: Sequence[str], split: str
    ) -> None:
        pairs = {name: self._examples.split(name, split) for name in names}
        held = {id(pair[0]): pair[0] for pair in pairs.values() if pair is not None}
        self._network.use(shared)
        first = self._table.one(names[0])[0]
        features = self._features(first, concatenated(list(held.values())))
        parts = dict(zip(held, features.split([len(x) for x in held.values()]), strict=True))
        for name, pair in pairs.items():
            assert pair is not None
            part, number = self._table.one(name)
            part.load({key: part.rows[key][number] for key in [OWN, *part.buffers]})
            with blaming(name, split):
                output = answers(part.head, [parts[id(pair[0])]])
            assert isinstance(pair[1], Tensor)
            scores.add(self._table.clients[name], output, pair[1])

    def _modules(self, name: str, shared: Tensor) -> tuple[nn.Module, nn.Module]:
        """Network and head as modules that hold a client's numbers, until the next call.

        ``shared`` is used unless the client has a network of its own.
        """
        part, number = self._table.one(name)
        own = self._table.network(name)
        self._network.use(shared if own is None else own)
        return part.load({key: part.rows[key][number] for key in [OWN, *part.buffers]})

    def _features(self, part: ClientPart, x: Inputs) -> Tensor:
        part.whole.eval()
        return torch.cat([call(self._network.module, piece) for piece in in_parts(x)])

    def _shares_features(self, part: ClientPart) -> bool:
        """Whether nothing in front of the heads is a client's own."""
        return not part.reaches_in and not self._statistics and part.stem is None
