"""Head steps on a frozen network: its features are computed once, and all heads step on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fedgradnorm._engines.examples import Examples
from fedgradnorm._engines.gradients import Batch
from fedgradnorm._engines.heads import head_gradient
from fedgradnorm._engines.parts import ClientPart
from fedgradnorm._round.evaluation import in_parts
from fedgradnorm._state.table import Group, Row
from fedgradnorm.models._input_rows import Inputs, call, concatenated


class HeadGradients:
    """Gradients of the heads of a block on given features ``[rows x batch, ...]`` by step."""

    def __init__(self, part: ClientPart, features: Callable[[int], Tensor], batch: Batch) -> None:
        self._part, self._features, self._batch = part, features, batch

    def of(
        self,
        omega: Tensor,  # noqa: ARG002
        row: Row,
        step: int,
        *,
        shared: bool,
        own: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Losses and the heads' gradients; the shared network has none here."""
        assert own
        assert not shared
        losses, _, gradient = head_gradient(
            self._part, row, self._features(step), self._batch.y(step), own=True
        )
        return losses, None, gradient

    def losses(self, omega: Tensor, row: Row, step: int) -> Tensor:
        """Never asked for: heads report no losses of their own steps."""
        raise NotImplementedError


class FrozenFeatures:
    """What the frozen network makes of a block's examples, for ``steps`` head steps.

    Where the steps visit the examples more than once, all examples of the clients are computed
    instead of all visits.
    """

    def __init__(
        self,
        network: nn.Module,
        examples: Examples,
        group: Group[ClientPart],
        batch: Batch,
        first: int,
        steps: int,
        capturing: bool,
    ) -> None:
        self._part, self._first = group.part, first
        sizes = np.array([examples.batches.sizes[name] for name in group.names])
        read = len(group.names) * (steps - first) * group.part.batch
        others = capturing and not group.whole  # may be there when a graph is replayed
        if others or read < sizes.sum() or not all(map(examples.can_pool, group.names)):
            parts = [forward(network, batch.x(step)) for step in range(first, steps)]
            self._features: Callable[[int], Tensor] = lambda step: parts[step]
            return
        splits = [examples.split(name, "train") for name in group.names]
        table = forward(network, concatenated([split[0] for split in splits if split]))
        begin = examples.starts(group.names)
        self._features = lambda step: table[
            (batch.own_rows(step + first) + begin[:, None]).reshape(-1)
        ]

    def of(self, step: int) -> Tensor:
        """The features of a step's batch."""
        return self._features(step - self._first)

    def gradients(self, batch: Batch) -> HeadGradients:
        """The gradients of heads on these features."""
        return HeadGradients(self._part, self.of, batch)


@torch.no_grad()
def forward(network: nn.Module, x: Inputs) -> Tensor:
    """The network's outputs for all examples, so many at a time."""
    return torch.cat([call(network, part) for part in in_parts(x)])
