"""Clients' examples on the device, and the batches that a round reads of them.

Training examples of all clients lie in one tensor per form, so that a round's batches are one
lookup. Where many clients are registered, or examples are read from a disk, nothing is joined: the
examples of a round are gathered from where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.gradients import Batch
from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._round.batches import batches_of
from fedgradnorm._state.table import Group
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._given_inputs import form_words
from fedgradnorm.models._input_rows import Inputs, concatenated, has_sequences, leaves, row_form
from fedgradnorm.models._streamed.rows import Streamed, StreamedTargets, Targets
from fedgradnorm.tasks._missing import labelled

Block = Group[ClientPart]
Split = tuple[Inputs, Targets]
Numbers = NDArray[np.int64]
KEPT = 64  # groups of clients whose places in the pools are remembered


class Lookup:
    """Batches as rows of pooled examples."""

    def __init__(
        self, x: Inputs, y: Tensor, rows: Tensor, x_begin: Tensor, y_begin: Tensor
    ) -> None:
        """``rows`` [clients, steps, batch] count from where each client's examples begin."""
        self._x, self._y, self.rows = x, y, rows
        self._x_begin, self._y_begin = x_begin, y_begin
        self._read: dict[int, Inputs] = {}
        self._targets: dict[int, Tensor] = {}

    def x(self, step: int) -> Inputs:
        """The inputs of a step, client after client."""
        if step not in self._read:
            at = (self.rows[:, step] + self._x_begin).reshape(-1)
            self._read[step] = self._x[at]
        return self._read[step]

    def y(self, step: int) -> Tensor:
        """The targets of a step."""
        if step not in self._targets:
            self._targets[step] = self._y[(self.rows[:, step] + self._y_begin).reshape(-1)]
        return self._targets[step]

    def own_rows(self, step: int) -> Tensor:
        """The examples' numbers among those of their client."""
        return self.rows[:, step]

    def part(self, some: slice) -> Lookup:
        """The batches of some of the clients."""
        begins = self._x_begin[some], self._y_begin[some]
        return Lookup(self._x, self._y, self.rows[some], *begins)


class OneClient:
    """A client's batches, of whatever form its examples have; ``rows`` are [steps, batch]."""

    def __init__(self, data: Split, rows: Tensor) -> None:
        self._data, self._rows = data, rows

    def x(self, step: int) -> Inputs:
        """The inputs of a step."""
        return self._data[0][self._rows[step]]

    def y(self, step: int) -> Tensor:
        """The targets of a step."""
        return self._data[1][self._rows[step]]

    def own_rows(self, step: int) -> Tensor:
        """The examples' numbers."""
        return self._rows[step][None]

    def part(self, some: slice) -> OneClient:  # noqa: ARG002
        """There is one client."""
        return self


class Examples:
    """The examples of all clients of an engine; ``pooled`` joins those that are used for training.

    Examples that several clients hold, as several tasks of one client do, are there once.
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
        self._placed: dict[tuple[int, int], tuple[Inputs, Inputs]] = {}
        self._splits: dict[tuple[str, str], Split] = {}
        self._x: dict[str, Inputs] = {}
        self._y: dict[str, Tensor] = {}
        self._where: dict[str, tuple[str, int, str, int]] = {}
        self._begins: dict[tuple[str, ...], tuple[str, str, Tensor, Tensor]] = {}
        self._starts: dict[tuple[str, ...], Tensor] = {}
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
            form = f"{form_words(row_form(x))} {_kinds(x)}"
            if id(x) not in seen:
                seen[id(x)] = form, sizes.get(form, 0)
                sizes[form] = sizes.get(form, 0) + len(x)
                inputs.setdefault(form, []).append(x)
            kind = f"y {y.dtype} {tuple(y.shape[1:])}"
            self._where[name] = (*seen[id(x)], kind, sizes.get(kind, 0))
            sizes[kind] = sizes.get(kind, 0) + len(y)
            targets.setdefault(kind, []).append(y)
        self._x = {form: parts[0] if len(parts) == 1 else concatenated(parts)
                   for form, parts in inputs.items()}  # fmt: skip
        self._y = {kind: torch.cat(parts) for kind, parts in targets.items()}
        views: dict[tuple[str, int], Inputs] = {}
        for name, (form, begin, kind, at) in self._where.items():
            size = self.batches.sizes[name]
            if (form, begin) not in views:
                views[form, begin] = self._x[form][begin : begin + size]
            self._splits[name, "train"] = views[form, begin], self._y[kind][at : at + size]
        self._placed.clear()

    def can_pool(self, name: str) -> bool:
        """Whether a client's training examples were joined with others'."""
        return name in self._where

    def split(self, name: str, split: str) -> Split | None:
        """A client's examples on the device; None where it has no such split."""
        key = name, split
        if key not in self._splits:
            client = self.clients[name]
            pair = client.learns_from() if split == "train" else getattr(client, split)
            if pair is None:
                return None
            placed = self._inputs(pair[0], client.stem), self._placed_targets(pair[1])
            if not self.pooled and split == "train" and not isinstance(pair[0], Streamed):
                return placed  # registered clients keep their examples where they are
            self._splits[key] = placed
        return self._splits[key]

    def one(self, name: str, round_number: int) -> OneClient:
        """A client's batches of a round, for one client at a time."""
        rows = self.batches.drawn([name], round_number)[name]
        data = self.split(name, "train")
        assert data is not None
        return OneClient(data, torch.from_numpy(rows).to(self.device))

    def counted(self, name: str, first: int, steps: int) -> OneClient:
        """A client's batches from number ``first`` on, counted from the run's start."""
        data = self.split(name, "train")
        assert data is not None
        x, y = data
        # here every task may have batches of its own
        if isinstance(y, Tensor) and self.clients[name].task.gaps:
            x, y = x[there := labelled(y)], y[there]
        batches = self.batches.only(name, len(x))
        rows = batches.many([name], first, steps)[name]
        return OneClient((x, y), torch.from_numpy(rows).to(self.device))

    def block(self, group: Block, round_number: int) -> Batch:
        """The batches of a block of clients in a round."""
        drawn = self.batches.drawn(group.names, round_number)
        if group.part.padded:
            for name, rows in drawn.items():
                missing = group.part.batch - rows.shape[1]
                drawn[name] = np.pad(rows, ((0, 0), (0, missing))) if missing else rows
        if self.can_pool(group.names[0]):
            return self.lookup(group.names, np.stack([drawn[name] for name in group.names]))
        return self._gathered(group.names, drawn)

    def lookup(self, names: Sequence[str], rows: Numbers) -> Lookup:
        """Pooled examples by each client's own row numbers [clients, steps, batch]."""
        form, kind, x_begin, y_begin = self.begins(names)
        drawn = torch.from_numpy(rows).to(self.device)
        return Lookup(self._x[form], self._y[kind], drawn, x_begin, y_begin)

    def pooled_rows(
        self, names: Sequence[str], rows: Tensor, x_begin: Tensor, y_begin: Tensor
    ) -> Lookup:
        """Pooled examples of clients of one form, by row numbers that are on the device."""
        form, _, kind, _ = self._where[names[0]]
        return Lookup(self._x[form], self._y[kind], rows, x_begin[:, None], y_begin[:, None])

    def begins(self, names: Sequence[str]) -> tuple[str, str, Tensor, Tensor]:
        """Which pools hold clients' inputs and targets, and where each client's begin."""
        key = tuple(names)
        if key not in self._begins:
            where = [self._where[name] for name in names]
            begin = torch.tensor([(x, y) for _, x, _, y in where]).to(self.device)[..., None]
            if len(self._begins) > KEPT:
                self._begins.clear()
            self._begins[key] = where[0][0], where[0][2], begin[:, 0], begin[:, 1]
        return self._begins[key]

    def starts(self, names: Sequence[str]) -> Tensor:
        """Where each client's examples begin if those of ``names`` are joined; kept."""
        key = tuple(names)
        if key not in self._starts:
            sizes = np.array([self.batches.sizes[name] for name in names])
            if len(self._starts) > KEPT:
                self._starts.clear()
            self._starts[key] = torch.from_numpy(np.cumsum(sizes) - sizes).to(self.device)
        return self._starts[key]

    def _gathered(self, names: Sequence[str], drawn: Mapping[str, Numbers]) -> Lookup:
        feeds = {n: x.feed for n in names if isinstance(x := self.clients[n].train[0], Streamed)}
        for name, feed in feeds.items():
            feed.expect([np.ascontiguousarray(drawn[name]).reshape(-1)])
        inputs, targets = list[Inputs](), list[Tensor]()
        for name in names:
            x, y = self.clients[name].learns_from()
            rows = torch.from_numpy(np.ascontiguousarray(drawn[name])).view(-1)
            inputs.append(_some(x, rows))
            targets.append(_some(y, rows))
            if name in feeds:
                feeds[name].rest()
        steps, batch = drawn[names[0]].shape
        x = as_input(concatenated(inputs), self._network, self.device)
        rows = torch.arange(len(x), device=self.device).view(len(names), steps, batch)
        begin = rows[:, :1, 0]
        return Lookup(x, self._targets(torch.cat(targets)), rows - begin[..., None], begin, begin)

    def whole(self, names: Sequence[str]) -> tuple[Inputs, Tensor]:
        """All training examples of clients of one size, joined: client after client."""
        if all(map(self.can_pool, names)):
            rows = np.arange(self.batches.sizes[names[0]], dtype=np.int64)
            found = self.lookup(names, np.tile(rows, (len(names), 1, 1)))
            return found.x(0), found.y(0)
        pairs = [self.clients[name].learns_from() for name in names]
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

    def _placed_targets(self, y: Targets) -> Targets:
        if isinstance(y, StreamedTargets):
            return y.placed(self._targets)
        return self._targets(torch.as_tensor(y))

    def _targets(self, y: Tensor) -> Tensor:
        return y.to(self.device, self._dtype) if y.is_floating_point() else y.to(self.device)


def _some(values: Any, rows: Tensor) -> Any:
    return values.index_select(0, rows) if isinstance(values, Tensor) else values[rows]


def _kinds(x: Inputs) -> str:
    return ",".join(str(leaf.dtype) for leaf in leaves(x).values())
