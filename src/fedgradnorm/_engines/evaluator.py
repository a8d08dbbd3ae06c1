"""Losses and metrics of clients: over whole splits, with dropout off and statistics in use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.examples import Block, Examples
from fedgradnorm._engines.parts import CLASSES, SCALE, ClientPart
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.evaluation import answers, evaluate, in_parts, represented
from fedgradnorm._state.table import BUFFER, NETWORK, OWN, ClientTable
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._given_inputs import form_words
from fedgradnorm.models._input_rows import Inputs, call, concatenated, has_sequences, row_form
from fedgradnorm.models._streamed import Streamed

ROWS_AT_ONCE = 4096  # examples of many clients in one pass
NUMBERS_WAITING = 2**22  # answers and targets that wait on a GPU to be measured together

Answered = tuple[Client, Tensor, Tensor]
"""A client, what its head answers for all examples of a split, and the targets."""
Scores = dict[str, dict[str, float]]


class Evaluator:
    """Evaluates the rows of a client table on the clients' examples.

    ``network`` is a scratch copy of the shared network.
    """

    def __init__(
        self, table: ClientTable[ClientPart], examples: Examples, network: FlatNetwork
    ) -> None:
        self._table, self._examples, self._network = table, examples, network
        self._statistics = bool(network.buffers())

    @torch.no_grad()
    def training_losses(self, group: Block, shared: Tensor, together: bool) -> Tensor:
        """Losses over all training examples; ``shared`` is [P], or networks [clients, P].

        With ``together`` clients of one size pass the network in one call, where they can.
        """
        part, names, clients = group.part, group.names, self._table.clients
        found = torch.empty(len(names), dtype=torch.float64, device=shared.device)
        together = together and shared.ndim == 1 and self._shares_features(part)
        if not together or any(isinstance(clients[n].train[0], Streamed) for n in names):
            for k, name in enumerate(names):
                modules = self._modules(name, shared if shared.ndim == 1 else shared[k])
                pair = self._examples.existing(name, "train")
                found[k] = evaluate(clients[name].task, *modules, *pair)["loss"]
            return found
        self._network.use(shared)
        sizes = np.array([self._examples.batches.sizes[name] for name in names])
        for size in dict.fromkeys(sizes.tolist()):
            here = (sizes == size).nonzero()[0]
            some = group.only(here)
            x, y = self._examples.whole(some.names)
            keys = [OWN, *part.buffers, *(k for k in (SCALE, CLASSES) if k in part.rows)]
            row = {key: part.rows[key][some.index] for key in keys}  # without padding
            own = part.own.views(row[OWN]) | {k.removeprefix(BUFFER): row[k] for k in part.buffers}
            outputs = part.heads_outputs(own, self._features(part, x), len(some.names))
            found[torch.from_numpy(here).to(found.device)] = part.losses(outputs, y, row).double()
        return found

    @torch.no_grad()
    def evaluate(self, shared: Tensor, split: str, names: Collection[str] | None = None) -> Scores:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all.

        A client's own network is used where it has one. Examples of clients that share everything
        in front of their heads pass the network together; examples that several hold pass once.
        """
        clients, position = self._table.clients, self._table.position.__getitem__
        wanted = clients if names is None else sorted(names, key=position)
        asked = [name for name in wanted if getattr(clients[name], split) is not None]
        alone, together = list[str](), list[str]()
        found = Scores()
        for group in self._table.group(asked):
            rows, alike = group.part.rows, self._shares_features(group.part)
            own = [False] * len(group.names)
            if NETWORK in rows:
                own = (~rows[NETWORK][group.index, 0].isnan()).tolist()
            for name, has_network in zip(group.names, own, strict=True):
                x = getattr(clients[name], split)[0]
                if isinstance(x, Streamed):
                    found[name] = self._streamed(shared, name, split)
                elif has_network or not alike or has_sequences(x):
                    alone.append(name)
                else:
                    together.append(name)
        found |= measured(self._alone(shared, alone, split), split)
        found |= measured(self._together(shared, sorted(together, key=position), split), split)
        return {name: found[name] for name in asked}

    def _streamed(self, shared: Tensor, name: str, split: str) -> dict[str, float]:
        client, pair = self._table.clients[name], self._examples.existing(name, split)
        try:
            modules = self._modules(name, shared)
            return evaluate(client.task, *modules, *pair, client.scaling)
        except ConfigError as error:
            raise ConfigError(f"client {name!r}, {split} data: {error}") from error

    def _alone(self, shared: Tensor, names: Sequence[str], split: str) -> Iterator[Answered]:
        """Clients one by one, each with all that is its own."""
        for name in names:
            x, y = self._examples.existing(name, split)
            assert isinstance(y, Tensor)
            network, head = self._modules(name, shared)
            yield self._table.clients[name], answers(head, represented(network, x)), y

    def _together(self, shared: Tensor, names: Sequence[str], split: str) -> Iterator[Answered]:
        """Clients that share everything in front of their heads, as many as fit one pass."""
        passes = list[list[str]]()
        size, form = 0, ""
        for name in names:
            x = getattr(self._table.clients[name], split)[0]
            own_form = form_words(row_form(x))
            if not passes or size + len(x) > ROWS_AT_ONCE or own_form != form:
                passes.append([])
                size = 0
            passes[-1].append(name)
            size, form = size + len(x), own_form
        for some in passes:
            pairs = {name: self._examples.existing(name, split) for name in some}
            inputs = {id(x): x for x, _ in pairs.values()}
            self._network.use(shared)
            part = self._table.one(some[0])[0]
            features = self._features(part, concatenated(list(inputs.values())))
            sizes = [len(x) for x in inputs.values()]
            of = dict(zip(inputs, features.split(sizes), strict=True))
            for name, (x, y) in pairs.items():
                assert isinstance(y, Tensor)
                _, head = self._own(name)
                yield self._table.clients[name], answers(head, [of[id(x)]]), y

    def _modules(self, name: str, shared: Tensor) -> tuple[nn.Module, nn.Module]:
        """Network and head as modules that hold a client's numbers, until the next call.

        ``shared`` is used unless the client has a network of its own.
        """
        own = self._table.network(name)
        self._network.use(shared if own is None else own)
        return self._own(name)

    def _own(self, name: str) -> tuple[nn.Module, nn.Module]:
        part, number = self._table.one(name)
        return part.load({key: part.rows[key][number] for key in [OWN, *part.buffers]})

    def _features(self, part: ClientPart, x: Inputs) -> Tensor:
        part.whole.eval()
        return torch.cat([call(self._network.module, piece) for piece in in_parts(x)])

    def _shares_features(self, part: ClientPart) -> bool:
        """Whether nothing in front of the heads is a client's own."""
        return not part.reaches_in and not self._statistics and part.stem is None


def measured(answered: Iterable[Answered], split: str) -> Scores:
    """Each client's loss and metrics.

    On a GPU every number that is asked for waits for all work. So answers wait there for those of
    others, and come to the host with one copy. Custom losses and metrics may hold tensors of
    one device: they are measured where the answers are, and so are very many of these.
    """
    found, waiting, numbers = Scores(), list[Answered](), 0

    def measure(client: Client, output: Tensor, y: Tensor) -> None:
        try:
            found[client.name] = client.task.measure(output, y.to(output.device), client.scaling)
        except ConfigError as error:
            raise ConfigError(f"client {client.name!r}, {split} data: {error}") from error

    def fetch() -> None:
        outputs = on_host([tensor for _, *pair in waiting for tensor in pair])
        for k, (client, _, _) in enumerate(waiting):
            measure(client, outputs[2 * k], outputs[2 * k + 1])
        waiting.clear()

    for client, output, y in answered:
        alone = not is_far(output) or not client.task.measures_anywhere
        if alone or output.numel() > NUMBERS_WAITING:
            measure(client, output, y)
            continue
        waiting.append((client, output, y))
        numbers += output.numel() + y.numel()
        if numbers > NUMBERS_WAITING:
            fetch()
            numbers = 0
    fetch()
    return found


def is_far(output: Tensor) -> bool:
    return output.is_cuda


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors on the host; those of one type come with one copy."""
    found: list[Tensor] = list(tensors)
    for kind in {tensor.dtype for tensor in tensors}:
        places = [k for k, tensor in enumerate(tensors) if tensor.dtype == kind]
        flat = torch.cat([tensors[k].flatten() for k in places]).cpu()
        parts = flat.split([tensors[k].numel() for k in places])
        for k, part in zip(places, parts, strict=True):
            found[k] = part.view(tensors[k].shape)
    return found
