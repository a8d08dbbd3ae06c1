"""What the clients of one process keep, and how it is read, written and exported."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.examples import Examples
from fedgradnorm._engines.parts import CLASSES, SCALE, ClientPart, FirstHeads, part_key
from fedgradnorm._round.local_update import LocalSpec
from fedgradnorm._state.table import (
    BUFFER,
    HAS_NETWORK,
    NETWORK,
    OWN,
    ClientTable,
    Group,
    Row,
)
from fedgradnorm.models._flat import working_copy

Block = Group[ClientPart]

DRAWN = 1000  # first heads that are drawn at once, where they get no row


@dataclass(frozen=True)
class Choice:
    """Which executor runs the clients, and what is known of the network.

    ``pure`` networks have no dropout and no batch statistics, so that the features of an example
    depend on nothing else. ``chunk`` is how many clients' networks are stepped in one call.
    ``many`` registered clients have rows and examples only when they are asked for.
    """

    executor: str = "loop"
    pure: bool = False
    chunk: int = 1
    many: bool = False
    pooled: bool = True


@dataclass(frozen=True)
class Exported:
    """What a client has learned: its head, its own parts of the network, its stem and network."""

    head: nn.Module
    parts: dict[str, Tensor]
    stem: nn.Module | None = None
    network: Tensor | None = None


class KeptClients:
    """Clients of one process: their table, their examples, and a scratch copy of the network."""

    capturing = False  # a CUDA graph: what the host counts is counted when it is replayed

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        heads: FirstHeads,
        *,
        norm_layer: Sequence[str],
        spec: LocalSpec,
        batch_size: int | None,
        seed: int,
        device: torch.device,
        bf16: bool = False,
        choice: Choice = Choice(),  # noqa: B008  # frozen
    ) -> None:
        self.clients = {client.name: client for client in clients}
        self.names = list(self.clients)
        self.spec, self.seed, self.device, self.choice = spec, seed, device, choice
        self.network = working_copy(network, device, bf16=bf16)
        self.heads_at_first = heads
        self._batch_size, self._buffers = batch_size, self.network.buffers()
        self.norm_layer = _places([self.network.slices[name] for name in norm_layer], device)
        self.table: ClientTable[ClientPart] = ClientTable(
            clients,
            device,
            key=lambda client: part_key(client, heads, batch_size, choice.many),
            new_part=self._new_part,
            first_rows=lambda part, some: part.first_rows(some, heads),
        )
        self.examples = Examples(
            clients, self.network.module, device,
            batch_size=batch_size, seed=seed, steps=spec.steps, pooled=choice.pooled,
        )  # fmt: skip

        self._groups: dict[tuple[str, ...], list[tuple[Block, Tensor]]] = {}

    @property
    def name(self) -> str:
        """The executor."""
        return self.choice.executor

    def _new_part(self, client: Client) -> ClientPart:
        batch = min(self._batch_size or client.drawn, client.drawn)
        head = self.heads_at_first[client.name]
        return ClientPart(client, self.network, head, self.spec, batch, self._buffers)

    def rows_of(self, group: Block) -> Row:
        """Copies of what a round reads and changes of the clients of a group."""
        part = group.part
        keys = [*part.moved, *(key for key in (SCALE, CLASSES) if key in part.rows)]
        if self.capturing and group.whole:  # a graph keeps copies of its own
            return {key: part.rows[key] for key in keys}
        return part.rows.take(group.index, keys)

    def modules(self, name: str, shared: Tensor) -> tuple[nn.Module, nn.Module]:
        """Network and head as modules that hold a client's numbers, until the next call.

        ``shared`` is used unless the client has a network of its own.
        """
        part, number = self.table.one(name)
        own = self.table.network(name)
        self.network.use(shared if own is None else own)
        return part.load({key: part.rows[key][number] for key in [OWN, *part.buffers]})

    def exported(self, name: str) -> Exported:
        """Copies of what a client has learned, as modules on the CPU."""
        part, number = self.table.one(name)
        row = {key: part.rows[key][number].detach().cpu().clone() for key in [OWN, *part.buffers]}
        own = part.own.views(row[OWN]) | {k.removeprefix(BUFFER): row[k] for k in part.buffers}

        def module(template: nn.Module, prefix: str) -> nn.Module:
            copied = copy.deepcopy(template).cpu()
            begin = f"{prefix}."
            mine = {k.removeprefix(begin): v for k, v in own.items() if k.startswith(begin)}
            for key, tensor in (*copied.named_parameters(), *copied.named_buffers()):
                tensor.data = mine[key].clone()
            return copied

        begin = "network."
        parts = {k.removeprefix(begin): v for k, v in own.items() if k.startswith(begin)}
        stem = None if part.stem is None else module(part.stem, "stem")
        network = self.table.network(name)
        return Exported(
            module(part.head, "head"),
            parts,
            stem,
            None if network is None else network.cpu().clone(),
        )

    def exported_all(self) -> dict[str, Exported]:
        """What every client has learned."""
        return {name: self.exported(name) for name in self.names}

    def heads(self) -> dict[str, nn.Module]:
        """Each client's head, as a copy on the CPU."""
        return {name: self.exported(name).head for name in self.names}

    def begin(self, name: str, parts: Mapping[str, Tensor]) -> None:
        """Let a client start with these statistics and private layers of the network."""
        part, number = self.table.one(name)
        for key, value in parts.items():
            if f"{BUFFER}network.{key}" in part.rows:
                part.rows[f"{BUFFER}network.{key}"][number] = value
            elif f"network.{key}" in part.own.slices:
                at = part.own.slices[f"network.{key}"]
                part.rows[OWN][number, at] = value.to(self.device).reshape(-1)
        part.rows.changed.add(number)

    def install(self, name: str, client: Exported) -> None:
        """Let a client have what :meth:`exported` returned, of this engine or another."""
        part = self.table.one(name)[0]
        head, stem = (
            client.head.state_dict(),
            {} if client.stem is None else client.stem.state_dict(),
        )
        named = {f"head.{k}": v for k, v in head.items()} | {
            f"stem.{k}": v for k, v in stem.items()
        }
        named |= {f"network.{k}": v for k, v in client.parts.items()}
        row = {OWN: part.own.flat(named)[None].to(part.rows.fresh[OWN])}
        for key in part.buffers:
            row[key] = named[key.removeprefix(BUFFER)][None].to(part.rows.fresh[key])
        self.keep(name, row, None if client.network is None else client.network.to(self.device))

    def keep(self, name: str, row: Row, network: Tensor | None) -> None:
        """Write a client's row; ``network`` is its own from now on, unless it is None."""
        part, number = self.table.one(name)
        if network is not None:
            self.table.give_room_for_networks(part, network)
            on = torch.ones(1, dtype=torch.bool, device=self.device)
            row = row | {NETWORK: network[None], HAS_NETWORK: on}
        part.rows.put(torch.tensor([number], device=self.device), row, [number])

    def first_rows(self, names: Sequence[str]) -> None:
        """Put clients back to how they began."""
        for group in self.table.group(names):
            clients = [self.clients[name] for name in group.names]
            first = group.part.first_rows(clients, self.heads_at_first)
            rows, fresh = group.part.rows, group.part.rows.fresh
            whole = {k: first.get(k, v.expand(len(clients), *v.shape)) for k, v in fresh.items()}
            rows.put(
                group.index, {k: v.to(fresh[k]) for k, v in whole.items()}, group.rows.tolist()
            )

    def head_rows(self, names: Sequence[str]) -> Tensor:
        """The heads of some clients, which are of one shape, as rows."""
        groups = self._grouped(names)
        size = groups[0][0].part.heads.size
        found = self.network.vector.new_empty(len(names), size)
        for group, turns in groups:
            found[turns] = group.part.rows[OWN][group.index, :size]
        return found

    def set_head_rows(self, names: Sequence[str], heads: Tensor) -> None:
        """Give clients the heads that :meth:`head_rows` returned."""
        for group, turns in self._grouped(names):
            group.part.rows[OWN][group.index, : heads.shape[1]] = heads.to(self.device)[turns]
            group.part.rows.changed.update(group.rows.tolist())

    def _grouped(self, names: Sequence[str]) -> list[tuple[Block, Tensor]]:
        """Clients by part, and where they are among ``names``; kept, since groups stay the same."""
        key = tuple(names)
        if key not in self._groups:
            pairs = [(g, torch.from_numpy(g.turns).to(self.device)) for g in self.table.group(key)]
            self._groups[key] = pairs
        return self._groups[key]

    def head_tables(self) -> list[tuple[list[str], Tensor, Tensor]] | None:
        """Everybody's linear head in stacked rows: names, weights, biases, for each shape.

        None where clients have more than a linear head. Clients that never took part are drawn
        here, and get no row by it.
        """
        plain = (p.linear and not p.reaches_in and NETWORK not in p.rows for p in self.table.parts)
        if self._buffers or not all(plain):
            return None
        by_shape: dict[tuple[int, int], list[str]] = {}
        for name, client in self.clients.items():
            if (shape := self.heads_at_first.shape(client)) is None:
                return None
            by_shape.setdefault(shape, []).append(name)
        found = []
        for (outputs, features), names in by_shape.items():
            rows = self._head_rows_or_first(names)
            weight, bias = rows.split([outputs * features, outputs], dim=1)
            found.append((names, weight.reshape(-1, outputs, features), bias.contiguous()))
        return found

    def _head_rows_or_first(self, names: Sequence[str]) -> Tensor:
        known = set(self.table.known())
        there = [name for name in names if name in known]
        new = [name for name in names if name not in known]
        place = {name: k for k, name in enumerate(names)}
        found: Tensor | None = None
        for start in range(0, len(new), DRAWN):
            some = new[start : start + DRAWN]
            rows = self.heads_at_first.rows([self.clients[name] for name in some])
            assert rows is not None
            found = rows.new_empty(len(names), rows.shape[1]) if found is None else found
            found[[place[name] for name in some]] = rows
        for group in self.table.group(there):
            rows = group.part.rows[OWN][group.index].cpu()
            found = rows.new_empty(len(names), rows.shape[1]) if found is None else found
            found[[place[name] for name in group.names]] = rows
        assert found is not None
        return found

    def client_state(self, name: str) -> Row:
        """A client's row, as copies; its own network only where it has one."""
        state = self.table.state(name)
        return state if NETWORK in state else {k: v for k, v in state.items() if k != HAS_NETWORK}

    def load_client(self, name: str, state: Mapping[str, Any]) -> None:
        """Restore a client's row."""
        self.table.load(name, state)

    @property
    def journal(self) -> ClientTable[ClientPart] | None:
        """The table, where a checkpoint writes only the rows that changed."""
        return self.table if self.choice.many else None

    def state_dict(self) -> dict[str, Any]:
        """The rows of all clients that took part so far, as copies."""
        return self.table.changed(everything=True)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; everybody else is as it began."""
        saved = {name for part in state["parts"] for name in part["names"]}
        if others := [name for name in self.table.known() if name not in saved]:
            self.first_rows(others)
        self.table.take(state)


def _places(parts: Sequence[slice], device: torch.device) -> Tensor | slice:
    """Where some parts of a vector are; a slice, which needs no copy, if they are adjacent."""
    found = torch.cat([torch.arange(part.start, part.stop) for part in parts])
    first = int(found[0])
    if torch.equal(found, torch.arange(first, first + len(found))):
        return slice(first, first + len(found))
    return found.to(device)
