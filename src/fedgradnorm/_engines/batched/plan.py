"""Who takes part in a round, and where their rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgradnorm._engines.batched.head_group import Chosen, HeadGroup
from fedgradnorm._engines.passes.shared_pass import SharedRows


@dataclass(frozen=True)
class Part:
    """The members of a head group that take part in a round, and where their rows are."""

    group: HeadGroup
    members: list[int]
    chosen: Chosen  # None: all members
    positions: Tensor  # the members' rows in the engine's order of clients
    rows: slice  # their rows in the round's joint batch

    @property
    def names(self) -> list[str]:
        """The clients."""
        return [self.group.names[k] for k in self.members]


@dataclass(frozen=True)
class Plan:
    """Who takes part in a round; ``columns`` of the batch table are theirs (None: all)."""

    parts: list[Part]
    columns: Tensor | None
    owner: Tensor  # the client, as a row of the engine's order, of each row of the joint batch
    positions: Tensor  # all parts' positions, in turn
    active: Tensor
    shared: SharedRows | None = None  # rows that several tasks of a client have in common

    @property
    def names(self) -> list[str]:
        """The clients, part after part."""
        return [name for part in self.parts for name in part.names]

    @property
    def stretches(self) -> list[tuple[slice, int]]:
        """Rows of the joint batch and how many of them are one client's, as few as possible."""
        found: list[tuple[slice, int]] = []
        for part in self.parts:
            if found and found[-1][1] == part.group.batch:
                found[-1] = slice(found[-1][0].start, part.rows.stop), part.group.batch
            else:
                found.append((part.rows, part.group.batch))
        return found


class Planner:
    """Makes plans; one is kept while the same clients take part."""

    def __init__(
        self, groups: Sequence[HeadGroup], device: torch.device, owners: Mapping[str, str]
    ) -> None:
        self._groups, self._device, self._owners = groups, device, owners
        self._clients = sum(len(group.names) for group in groups)
        self._kept: dict[tuple[str, ...], Plan] = {}

    def plan(self, active: Sequence[str]) -> Plan:
        """Who takes part."""
        key = tuple(active)
        if key not in self._kept:
            self._kept = {key: self._make(set(active))}
        return self._kept[key]

    def _make(self, wanted: set[str]) -> Plan:
        parts, columns, start, column = list[Part](), list[Tensor](), 0, 0
        for group in self._groups:
            members = [k for k, name in enumerate(group.names) if name in wanted]
            for k in members:
                first = column + k * group.batch
                columns.append(torch.arange(first, first + group.batch))
            column += len(group.names) * group.batch
            if members:
                parts.append(self._part(group, members, start))
                start = parts[-1].rows.stop
        owner = torch.cat([p.positions.repeat_interleave(p.group.batch) for p in parts])
        active = torch.zeros(self._clients, dtype=torch.bool, device=self._device)
        active[owner] = True
        picked = None if start == column else torch.cat(columns).to(self._device)
        positions = torch.cat([p.positions for p in parts])
        return Plan(parts, picked, owner, positions, active, self._shared(parts))

    def _shared(self, parts: Sequence[Part]) -> SharedRows | None:
        """Which rows of the joint batch are the same; None where none are."""
        places: dict[str, list[Tensor]] = {}
        start = 0
        for part in parts:
            for name in part.names:
                mine = torch.arange(start, start + part.group.batch)
                places.setdefault(self._owners[name], []).append(mine)
                start += part.group.batch
        most = max(map(len, places.values()))
        if most == 1:
            return None
        first = torch.cat([own[0] for own in places.values()])
        back, turn = torch.empty(start, dtype=torch.int64), torch.empty(start, dtype=torch.int64)
        table, passed = torch.full((len(first), most), start), 0
        for own in places.values():
            rows = torch.arange(passed, passed + len(own[0]))
            for k, mine in enumerate(own):
                back[mine], turn[mine], table[rows, k] = rows, k, mine
            passed += len(own[0])
        device = self._device
        return SharedRows(*(part.to(device) for part in (first, back, turn, table)))

    def _part(self, group: HeadGroup, members: list[int], start: int) -> Part:
        """These members of a group, whose rows begin at ``start`` of the joint batch."""
        everybody = len(members) == len(group.names)
        chosen = None if everybody else torch.tensor(members, device=self._device)
        positions = group.positions if chosen is None else group.positions[chosen]
        rows = slice(start, start + group.batch * len(members))
        return Part(group, members, chosen, positions, rows)
