"""All clients' training rows in one tensor, so that one pass can read everybody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedgradnorm._engines.batched.head_group import Chosen, HeadGroup
from fedgradnorm.models._input_rows import Inputs, concatenated


class JoinedData:
    """Inputs of all clients, group after group, and the targets of each group.

    ``begin`` holds the first row of each client and ``sizes`` how many it has, in the joint order.
    Clients that hold the very same rows, as several tasks of one do, have them in common.
    """

    def __init__(
        self, groups: Sequence[HeadGroup], train: Mapping[str, tuple[Inputs, Tensor]]
    ) -> None:
        order = [name for group in groups for name in group.names]
        self.sizes = {name: len(train[name][0]) for name in order}
        self.begin, start, seen = dict[str, int](), 0, dict[int, Inputs]()
        places: dict[int, int] = {}
        for name, size in self.sizes.items():
            x = train[name][0]
            if id(x) not in seen:  # several tasks of one client hold the very same rows
                seen[id(x)], places[id(x)] = x, start
                start += size
            self.begin[name] = places[id(x)]
        self.inputs = concatenated(list(seen.values()))
        self._targets = {
            group.names[0]: torch.cat([train[name][1] for name in group.names]) for group in groups
        }
        self._views: dict[int, Inputs] = {}
        device, alone = self.inputs.device, len(seen) == len(order)
        self._shift = {} if alone else {g.names[0]: self._shifts(g).to(device) for g in groups}

    def _shifts(self, group: HeadGroup) -> Tensor:
        """How far each client's targets in its group are from its inputs."""
        found, start = [], 0
        for name in group.names:
            found.append(start - self.begin[name])
            start += self.sizes[name]
        return torch.tensor(found)

    @property
    def tensor(self) -> Tensor:
        """The inputs, for those who are only asked where they are one tensor."""
        assert isinstance(self.inputs, Tensor)
        return self.inputs

    def inputs_of(self, name: str) -> Inputs:
        """A client's rows, as a view; tasks that hold the same rows get the very same one."""
        start = self.begin[name]
        if start not in self._views:
            self._views[start] = self.inputs[start : start + self.sizes[name]]
        return self._views[start]

    def targets(self, group: HeadGroup, rows: Tensor, chosen: Chosen) -> Tensor:
        """The targets of some rows of the joint inputs: as many of each client that is chosen."""
        first = group.names[0]
        if self._shift:
            shift = self._shift[first] if chosen is None else self._shift[first][chosen]
            return self._targets[first][(rows.view(len(shift), -1) + shift[:, None]).flatten()]
        return self._targets[first][rows - self.begin[first]]
