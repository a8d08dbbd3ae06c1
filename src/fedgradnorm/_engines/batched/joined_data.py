"""All clients' training rows in one tensor, so that one pass can read everybody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedgradnorm._engines.batched.head_group import HeadGroup
from fedgradnorm.models._input_rows import Inputs, concatenated


class JoinedData:
    """Inputs of all clients, group after group, and the targets of each group.

    ``begin`` holds the first row of each client and ``sizes`` how many it has, in the joint order.
    """

    def __init__(
        self, groups: Sequence[HeadGroup], train: Mapping[str, tuple[Inputs, Tensor]]
    ) -> None:
        order = [name for group in groups for name in group.names]
        self.inputs = concatenated([train[name][0] for name in order])
        self.sizes = {name: len(train[name][0]) for name in order}
        self.begin, start = dict[str, int](), 0
        for name, size in self.sizes.items():
            self.begin[name] = start
            start += size
        self._targets = {
            group.names[0]: torch.cat([train[name][1] for name in group.names]) for group in groups
        }

    @property
    def tensor(self) -> Tensor:
        """The inputs, for those who are only asked where they are one tensor."""
        assert isinstance(self.inputs, Tensor)
        return self.inputs

    def inputs_of(self, name: str) -> Inputs:
        """A client's rows, as a view."""
        start = self.begin[name]
        return self.inputs[start : start + self.sizes[name]]

    def targets(self, group: HeadGroup, rows: Tensor) -> Tensor:
        """The targets of some rows of the joint inputs, all of one group's clients."""
        first = group.names[0]
        return self._targets[first][rows - self.begin[first]]
