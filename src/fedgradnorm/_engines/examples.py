"""Clients' examples on the device, and the batches that a round reads of them.

Training examples of all clients lie in one tensor per form, so that a round's batches are one
lookup. Where many clients are registered, or examples are read from a disk, nothing is joined: the
examples of a round are gathered from where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.parts import PLACE, ClientPart
from fedgradnorm._round.batches import batches_of
from fedgradnorm._state.table import Group
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._given_inputs import form_words
from fedgradnorm.models._input_rows import Inputs, concatenated, has_sequences, leaves, row_form
from fedgradnorm.models._streamed import Streamed, StreamedTargets, Targets
from fedgradnorm.tasks._targets import labelled

if TYPE_CHECKING:
    from numpy.typing import NDArray

Block = Group[ClientPart]
Split = tuple[Inputs, Targets]
MOST_UNREAD = 4  # examples are joined whole where a round reads at least one in so many


class Batch:
    """The examples that a block of clients reads, by step: client after client.

    ``rows`` ``[clients, steps, batch]`` count from where each client's inputs and targets begin,
    ``begin`` ``[clients, 2]``. One client with examples of its own needs none.
    """

    def __init__(self, x: Inputs, y: Targets, rows: Tensor, begin: Tensor | None = None) -> None:
        self._x, self._y, self.rows, self._begin = x, y, rows, begin
        self._read: dict[tuple[int, int], Any] = {}

    def x(self, step: int) -> Inputs:
        """Inputs ``[clients x batch, ...]``."""
        found: Inputs = self._at(self._x, 0, step)
        return found

    def y(self, step: int) -> Tensor:
        """Targets ``[clients x batch, ...]``."""
        found: Tensor = self._at(self._y, 1, step)
        return found

    def _at(self, values: Any, column: int, step: int) -> Any:
        if self._begin is None:
            return values[self.rows[0, step]]
        if (column, step) not in self._read:
            at = (self.rows[:, step] + self._begin[:, column, None]).reshape(-1)
            self._read[column, step] = values[at]
        return self._read[column, step]

    def part(self, some: slice) -> Batch:
        begin = None if self._begin is None else self._begin[some]
        return Batch(self._x, self._y, self.rows[some], begin)


class Examples:
    """The examples of all clients of an engine; ``pooled`` joins those that are used for training.

    Examples that several clients hold, as several tasks of one client do, are there once. ``where``
    tells which pools hold a client's inputs and targets, and where they begin.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        network: nn.Module,
        device: torch.device,
        *,
        batch_size: int | None,
        seed: int,
        steps: int,
        pooled: bool,
    ) -> None:
        self.clients = {client.name: client for client in clients}
        self.device, self._network = device, network
        self._dtype = next(network.parameters()).dtype
        self.batches = batches_of(clients, batch_size, seed, steps)
        self.pooled = pooled
        inputs = {name: client.train[0] for name, client in self.clients.items()}
        self._feeds = {name: x.feed for name, x in inputs.items() if isinstance(x, Streamed)}
        self.where: dict[str, tuple[str, int, str, int]] = {}
        self._placed: dict[tuple[int, int], tuple[Inputs, Inputs]] = {}
        self._splits: dict[tuple[str, str], Split] = {}
        self._whole: dict[str, Split] = {}
        self._x: dict[str, Inputs] = {}
        self._y: dict[str, Tensor] = {}
        if pooled:
            self._join()

    def _join(self) -> None:
        """One tensor per form of inputs, and one per form of targets."""
        inputs, targets = dict[str, list[Inputs]](), dict[str, list[Tensor]]()
        sizes: dict[str, int] = {}
        seen: dict[int, tuple[str, int]] = {}
        for name, client in self.clients.items():
            x, y = client.learns_from()
            if isinstance(x, Streamed) or not isinstance(y, Tensor) or has_sequences(x):
                continue
            x, y = self._inputs(x, client.stem), self._targets(y)
            kinds = ",".join(str(leaf.dtype) for leaf in leaves(x).values())
            form, kind = f"{form_words(row_form(x))} {kinds}", f"y {y.dtype} {tuple(y.shape[1:])}"
            if id(x) not in seen:
                seen[id(x)] = form, sizes.get(form, 0)
                sizes[form] = sizes.get(form, 0) + len(x)
                inputs.setdefault(form, []).append(x)
            self.where[name] = (*seen[id(x)], kind, sizes.get(kind, 0))
            sizes[kind] = sizes.get(kind, 0) + len(y)
            targets.setdefault(kind, []).append(y)
        self._x = {form: parts[0] if len(parts) == 1 else concatenated(parts)
                   for form, parts in inputs.items()}  # fmt: skip
        self._y = {kind: torch.cat(parts) for kind, parts in targets.items()}
        views: dict[tuple[str, int], Inputs] = {}
        for name, (form, begin, kind, at) in self.where.items():
            size = self.batches.sizes[name]
            if (form, begin) not in views:
                views[form, begin] = self._x[form][begin : begin + size]
            self._splits[name, "train"] = views[form, begin], self._y[kind][at : at + size]
        self._placed.clear()

    def places(self, clients: Sequence[Client]) -> Tensor:
        """Where each client's inputs and targets begin in their pools, and how many it has."""
        sizes, where, nowhere = self.batches.sizes, self.where, ("", 0, "", 0)
        found = [(*where.get(c.name, nowhere)[1::2], sizes[c.name]) for c in clients]
        return torch.tensor(found)

    def split(self, name: str, split: str) -> Split | None:
        """A client's examples on the device; None where it has no such split."""
        key = name, split
        if key not in self._splits:
            client = self.clients[name]
            pair = client.learns_from() if split == "train" else getattr(client, split)
            if pair is None:
                return None
            x, y = pair
            targets: Targets = (
                y.placed(self._targets)
                if isinstance(y, StreamedTargets)
                else self._targets(torch.as_tensor(y))
            )
            placed = self._inputs(x, client.stem), targets
            if not self.pooled and split == "train" and not isinstance(x, Streamed):
                return placed  # registered clients keep their examples where they are
            self._splits[key] = placed
        return self._splits[key]

    def existing(self, name: str, split: str) -> Split:
        found = self.split(name, split)
        assert found is not None
        return found

    def one(self, name: str, round_number: int) -> Batch:
        """A client's batches of a round, of whatever form its examples have."""
        rows = self.batches.of_round(round_number, [name])[name]
        return Batch(*self.existing(name, "train"), torch.from_numpy(rows).to(self.device)[None])

    def in_turn(self, names: Sequence[str], round_number: int) -> Iterator[str]:
        """The clients one after another; while one works, the batches of the next are read.

        Where every client participates, that is the first client again, in the round after.
        """
        for k, name in enumerate(names):
            self._expect(name, round_number)
            if k + 1 < len(names):
                self._expect(names[k + 1], round_number)
            elif len(names) == len(self.clients):
                self._expect(names[0], round_number + 1)
            yield name
            if len(names) > 1 and name in self._feeds:
                self._feeds[name].rest()

    def _expect(self, name: str, round_number: int) -> None:
        """Begin to read a client's batches of a round, where they are read from a disk."""
        if name in self._feeds:
            rows = self.batches.of_round(round_number, [name])[name]
            self._feeds[name].expect(list(rows))

    def counted(self, name: str, first: int, steps: int) -> Batch:
        """A client's batches from number ``first`` on, counted from the run's start."""
        x, y = self.existing(name, "train")
        # here every task may have batches of its own
        if isinstance(y, Tensor) and self.clients[name].task.gaps:
            x, y = x[there := labelled(y)], y[there]
        rows = self.batches.only(name, len(x)).many([name], first, steps)[name]
        return Batch(x, y, torch.from_numpy(rows).to(self.device)[None])

    def block(self, group: Block, drawn: Mapping[str, NDArray[np.int64]]) -> Batch:
        """The batches of a group's clients in a round, for which ``drawn`` has their rows."""
        names, width = group.names, group.part.batch
        rows = torch.zeros(len(names), self.batches.steps, width, dtype=torch.int64)
        for table, name in zip(rows.numpy(), names, strict=True):
            own = drawn[name]
            table[:, : own.shape[1]] = own  # of fewer examples; the rest is padding
        if names[0] in self.where:
            return self.lookup(group, rows.to(self.device))
        pairs = [self._training(name) for name in names]
        feeds = {
            n: x.feed for n, (x, _) in zip(names, pairs, strict=True) if isinstance(x, Streamed)
        }
        sizes = np.array([self.batches.sizes[name] for name in names])
        if not feeds and sizes.sum() <= MOST_UNREAD * rows.numel():
            begin = torch.from_numpy(np.cumsum(sizes) - sizes)[:, None].expand(-1, 2)
            return Batch(*self._joined(pairs), rows.to(self.device), begin.to(self.device))
        for name, feed in feeds.items():
            feed.expect([np.ascontiguousarray(drawn[name]).reshape(-1)])
        some = list[Any]()
        for name, pair, own in zip(names, pairs, rows.flatten(1), strict=True):
            some.append([v.index_select(0, own) if isinstance(v, Tensor) else v[own] for v in pair])
            if name in feeds:
                feeds[name].rest()
        x, y = self._joined(some)
        numbers = torch.arange(len(x), device=self.device).view(rows.shape)
        begin = numbers[:, 0, :1].expand(-1, 2)
        return Batch(x, y, numbers - begin[:, :1, None], begin)

    def lookup(self, group: Block, rows: Tensor) -> Batch:
        """Pooled examples of a block, by row numbers [clients, steps, batch] on the device."""
        form, _, kind, _ = self.where[group.names[0]]
        begin = group.part.rows[PLACE].index_select(0, group.index)
        return Batch(self._x[form], self._y[kind], rows, begin)

    def whole(self, names: Sequence[str]) -> tuple[Inputs, Tensor]:
        """All training examples of some clients, joined: client after client."""
        if all(name in self.where for name in names):
            pairs = [self._splits[name, "train"] for name in names]
            ys = [y for _, y in pairs if isinstance(y, Tensor)]
            return concatenated([x for x, _ in pairs]), torch.cat(ys)
        return self._joined([self._training(name) for name in names])

    def _training(self, name: str) -> Split:
        """A client's training examples where they are; kept, unless some are left out."""
        if (pair := self._whole.get(name)) is None:
            pair = self.clients[name].learns_from()
            if pair[0] is self.clients[name].train[0]:
                self._whole[name] = pair
        return pair

    def _joined(self, pairs: Sequence[Split]) -> tuple[Inputs, Tensor]:
        y = self._targets(torch.cat([y for _, y in pairs if isinstance(y, Tensor)]))
        return as_input(concatenated([x for x, _ in pairs]), self._network, self.device), y

    def _inputs(self, x: Inputs, stem: nn.Module | None) -> Inputs:
        # The source is kept too, so that no other tensor can come to have its id.
        key = id(x), id(stem)
        found = self._placed.get(key)
        if found is None:
            found = x, as_input(x, self._network, self.device, stem)
            if self.pooled or isinstance(x, Streamed):
                self._placed[key] = found
        return found[1]

    def _targets(self, y: Tensor) -> Tensor:
        return y.to(self.device, self._dtype) if y.is_floating_point() else y.to(self.device)


@dataclass(frozen=True)
class SharedExamples:
    """Examples of a joint batch that several tasks of one client share, so that each passes once.

    An example of the joint batch is one that passes (``back``), as one of its tasks (``turn``).
    For each that passes, ``first`` is its first place in the joint batch and ``places`` are all of
    them, [passing, tasks]; where there are fewer, the size of the joint batch.
    """

    first: Tensor
    back: Tensor
    turn: Tensor
    places: Tensor

    @classmethod
    def of(
        cls, owners: Sequence[int], batches: Sequence[int], device: torch.device
    ) -> SharedExamples | None:
        """Which examples are the same, ``batches`` of each owner; None where all differ."""
        if len(set(owners)) == len(owners):
            return None
        places: dict[int, list[Tensor]] = {}
        start = 0
        for owner, batch in zip(owners, batches, strict=True):
            places.setdefault(owner, []).append(torch.arange(start, start + batch))
            start += batch
        first = torch.cat([own[0] for own in places.values()])
        back, turn = torch.empty(start, dtype=torch.int64), torch.empty(start, dtype=torch.int64)
        table, passed = torch.full((len(first), max(map(len, places.values()))), start), 0
        for own in places.values():
            rows = torch.arange(passed, passed + len(own[0]))
            for k, mine in enumerate(own):
                back[mine], turn[mine], table[rows, k] = rows, k, mine
            passed += len(own[0])
        return cls(*(part.to(device) for part in (first, back, turn, table)))

    def summed(self, gradient: Tensor) -> Tensor:
        """All tasks' output gradients together, in an order that does not change."""
        padded = torch.cat([gradient, torch.zeros_like(gradient[:1])])
        return padded[self.places].sum(dim=1)

    def each_task(
        self, gradient: Tensor, through: Callable[[Tensor], Sequence[Tensor]]
    ) -> list[Tensor]:
        """What ``through`` makes of each task's part, for every example of the joint batch."""
        padded = torch.cat([gradient, torch.zeros_like(gradient[:1])])
        turns = [through(padded[self.places[:, k]]) for k in range(self.places.shape[1])]
        return [torch.stack(parts)[self.turn, self.back] for parts in zip(*turns, strict=True)]


@dataclass(frozen=True)
class Plan:
    """The clients of a round by part, and where they are: nothing in it depends on the round.

    ``owners`` numbers who they belong to, group after group: tasks of one client have one number.
    """

    active: tuple[str, ...]
    groups: list[Block]
    turns: list[Tensor]  # of each group, among the active
    order: Tensor  # all turns in a row
    places: Tensor | None  # of the active among all; None: all are active
    size: Tensor
    owners: tuple[int, ...]
    once: SharedExamples | None  # in a joint batch
    owner: Tensor  # the client of each example of a joint batch
