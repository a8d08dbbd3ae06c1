"""Losses and metrics of clients: over whole splits, with dropout off and statistics in use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._engines.kept_clients import Block, KeptClients
from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._engines.scores import HostTargets, Scores, blaming
from fedgradnorm._round.evaluation import answers, evaluate, in_parts, represented
from fedgradnorm._round.local_update import log_classes
from fedgradnorm._state.table import BUFFER, OWN, Row
from fedgradnorm.models._given_inputs import form_words
from fedgradnorm.models._input_rows import Inputs, call, concatenated, has_sequences, row_form
from fedgradnorm.models._streamed.rows import Streamed

ROWS_AT_ONCE = 4096  # examples of many clients in one pass


class MeasuredClients(KeptClients):
    """Clients that can be evaluated."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.host_targets = HostTargets()

    @torch.no_grad()
    def measured_first(self, group: Block, shared: Tensor) -> Tensor:
        """Losses over all training examples, or log C; ``shared`` is [P], or [clients, P]."""
        part, names = group.part, group.names
        if self.spec.first_loss == "log_classes":
            known = [log_classes(self.clients[name].task) for name in names]
            return torch.tensor(known, dtype=torch.float64, device=self.device)
        found = torch.empty(len(names), dtype=torch.float64, device=self.device)
        sizes = np.array([self.examples.batches.sizes[name] for name in names])
        together = self.choice.executor != "loop" and shared.ndim == 1 and len(names) > 1
        if not together or not self._shares_features(part) or self._streams(names):
            for k, name in enumerate(names):
                front, head = self.modules(name, shared if shared.ndim == 1 else shared[k])
                pair = self.examples.split(name, "train")
                assert pair is not None
                found[k] = evaluate(self.clients[name].task, front, head, *pair)["loss"]
            return found
        self.network.use(shared)
        for size in dict.fromkeys(sizes.tolist()):
            here = (sizes == size).nonzero()[0]
            some = group.only(here)
            x, y = self.examples.whole(some.names)
            row, z = self.rows_of(some), self._features(part, x)
            outputs = part.heads_outputs(self._named(part, row), z, len(some.names))
            found[torch.from_numpy(here).to(self.device)] = part.losses(outputs, y, row).double()
        return found

    def _streams(self, names: Sequence[str]) -> bool:
        """Whether any of these clients reads its examples as they are needed."""
        return any(isinstance(self.clients[name].train[0], Streamed) for name in names)

    def _named(self, part: ClientPart, row: Row) -> Row:
        own = part.own.views(row[OWN])
        return own | {key.removeprefix(BUFFER): row[key] for key in part.buffers}

    def _features(self, part: ClientPart, x: Inputs) -> Tensor:
        part.whole.eval()
        return torch.cat([call(self.network.module, piece) for piece in in_parts(x)])

    def _shares_features(self, part: ClientPart) -> bool:
        """Whether nothing in front of the heads is a client's own."""
        return not part.reaches_in and not self._buffers and part.stem is None

    @torch.no_grad()
    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all.

        A client's own network is used where it has one. Examples of clients that share everything
        in front of their heads pass the network together; examples that several hold pass once.
        """
        wanted = (
            self.clients if names is None else sorted(names, key=self.table.position.__getitem__)
        )
        asked = [name for name in wanted if getattr(self.clients[name], split) is not None]
        scores = Scores(split, self.host_targets)
        together = list[str]()
        for group in self.table.group(asked):
            for name in group.names:
                x = getattr(self.clients[name], split)[0]
                apart = isinstance(x, Streamed) or self.table.has_network(name)
                if apart or not self._shares_features(group.part) or has_sequences(x):
                    self._evaluate_one(scores, shared, name, split)
                else:
                    together.append(name)
        for some in self._portions(sorted(together, key=self.table.position.__getitem__), split):
            self._evaluate_together(scores, shared, some, split)
        return scores.in_order(asked)

    def _evaluate_one(self, scores: Scores, shared: Tensor, name: str, split: str) -> None:
        client, pair = self.clients[name], self.examples.split(name, split)
        assert pair is not None
        x, y = pair
        front, head = self.modules(name, shared)
        with blaming(name, split):
            if isinstance(x, Streamed):
                scores.put({name: evaluate(client.task, front, head, x, y, client.scaling)})
                return
            output = answers(head, represented(front, x))
        assert isinstance(y, Tensor)
        scores.add(client, output, y)

    def _portions(self, names: Sequence[str], split: str) -> Iterator[list[str]]:
        """Clients whose examples fit into one pass."""
        some, held, forms = list[str](), 0, set[str]()
        for name in names:
            x = getattr(self.clients[name], split)[0]
            form = form_words(row_form(x))
            if some and (held + len(x) > ROWS_AT_ONCE or form not in forms):
                yield some
                some, held, forms = [], 0, set()
            some.append(name)
            held += len(x)
            forms.add(form)
        if some:
            yield some

    def _evaluate_together(
        self, scores: Scores, shared: Tensor, names: Sequence[str], split: str
    ) -> None:
        pairs = {name: self.examples.split(name, split) for name in names}
        held = {id(pair[0]): pair[0] for pair in pairs.values() if pair is not None}
        self.network.use(shared)
        first = self.table.one(names[0])[0]
        features = self._features(first, concatenated(list(held.values())))
        parts = dict(zip(held, features.split([len(x) for x in held.values()]), strict=True))
        for name in names:
            pair = pairs[name]
            assert pair is not None
            part, number = self.table.one(name)
            row = {key: part.rows[key][number] for key in [OWN, *part.buffers]}
            part.load(row)
            with blaming(name, split):
                output = answers(part.head, [parts[id(pair[0])]])
            assert isinstance(pair[1], Tensor)
            scores.add(self.clients[name], output, pair[1])
