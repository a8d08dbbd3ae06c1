"""The rows that a round reads, taken from where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgradnorm._engines.batched.head_group import Chosen, HeadGroup
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._input_rows import Inputs, concatenated
from fedgradnorm.models._streamed.rows import Streamed, Targets

Rows = tuple[Inputs, Targets]
Drawn = Mapping[str, NDArray[np.int64]]


class Gathered:
    """Batches of some clients as one tensor; nothing else of their data is touched.

    ``drawn`` are row numbers [steps, batch] of each client, in groups of heads. A client whose
    steps visit its data more than once is taken whole, unless its rows lie elsewhere.
    """

    def __init__(
        self,
        groups: Sequence[tuple[HeadGroup, Sequence[str]]],
        train: Mapping[str, Rows],
        drawn: Drawn,
        network: nn.Module,
        device: torch.device,
    ) -> None:
        self.begin, self.sizes = dict[str, int](), dict[str, int]()
        self._targets: dict[int, tuple[int, Tensor]] = {}
        inputs, numbers, start = list[Inputs](), list[Tensor](), 0
        dtype = next(network.parameters()).dtype
        for group, names in groups:
            first, targets = start, list[Tensor]()
            drawn_rows = torch.from_numpy(np.stack([drawn[name] for name in names]))
            whole = list[tuple[int, int]]()  # clients that are not picked from, and their place
            reads = drawn_rows[0].numel()
            for k, (name, rows) in enumerate(zip(names, drawn_rows.flatten(1), strict=True)):
                x, y = train[name]
                size = len(x)
                if reads < size or isinstance(x, Streamed):
                    x, y, size = _picked(x, rows), _picked(y, rows), reads
                else:
                    whole.append((k, start))
                assert isinstance(y, Tensor)
                inputs.append(x)
                targets.append(y)
                self.begin[name], self.sizes[name] = start, size
                start += size
            begins = torch.tensor([self.begin[name] for name in names])
            places = torch.arange(reads).view(1, *drawn_rows.shape[1:]) + begins[:, None, None]
            for k, begin in whole:
                places[k] = drawn_rows[k] + begin
            numbers.append(places.transpose(0, 1).flatten(1))
            y = torch.cat(targets)
            y = y.to(device, dtype) if y.is_floating_point() else y.to(device)
            self._targets[id(group)] = first, y
        self.inputs = as_input(concatenated(inputs), network, device)
        self.rows = torch.cat(numbers, dim=1).to(device)

    def targets(self, group: HeadGroup, rows: Tensor, chosen: Chosen) -> Tensor:  # noqa: ARG002
        """The targets of some of the rows."""
        first, targets = self._targets[id(group)]
        return targets[rows - first]


def _picked(values: Any, rows: Tensor) -> Any:
    return values.index_select(0, rows) if isinstance(values, Tensor) else values[rows]


class Ahead:
    """Has the rows of clients read that read them as they are asked for, before they are."""

    def __init__(self, train: Callable[[str], Rows], names: Iterable[str]) -> None:
        found = ((name, train(name)[0]) for name in names)
        self._feeds = {name: x.feed for name, x in found if isinstance(x, Streamed)}

    def __bool__(self) -> bool:
        return bool(self._feeds)

    def expect(self, drawn: Drawn) -> None:
        """Begin to read these rows; each client's are read at once."""
        for name, rows in drawn.items():
            if name in self._feeds:
                self._feeds[name].expect([np.ascontiguousarray(rows).reshape(-1)])

    def rest(self, names: Iterable[str]) -> None:
        """Let go of what was read for these clients."""
        for name in names:
            if name in self._feeds:
                self._feeds[name].rest()
