"""One weight per task, for clients that share a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedgradnorm.weighting._base import Signals, Weighting


class ByTask(Weighting):
    """Runs another weighting with one row per task instead of one per client.

    A task's signals are the means over its active clients (sizes are added up); each client gets
    its task's weight, and the active clients' weights sum to their number as always.
    """

    def __init__(self, inner: Weighting, tasks: Mapping[str, str]) -> None:
        super().__init__()
        self.inner = inner
        self.needs, self.capturable = inner.needs, inner.capturable
        self.tasks = dict(tasks)
        self._member = torch.empty(0)

    def bind(self, clients: Sequence[str]) -> None:
        """Give each client a row, and each of their tasks a row of the inner weighting."""
        super().bind(clients)
        tasks = list(dict.fromkeys(self.tasks[name] for name in clients))
        self.inner.bind(tasks)
        self._member = torch.zeros(len(tasks), len(clients), dtype=torch.float64)
        for column, name in enumerate(clients):
            self._member[tasks.index(self.tasks[name]), column] = 1

    def weigh(self, signals: Signals) -> Tensor:
        weights = self.inner.update(self._of_tasks(signals))
        return self._member.T @ weights

    def direction(self, signals: Signals) -> Tensor | None:
        if type(self.inner).direction is Weighting.direction:
            return None
        return self.inner.direction(self._of_tasks(signals))

    def _of_tasks(self, signals: Signals) -> Signals:
        member = self._member = self._member.to(signals.active.device)
        counted = member * signals.active
        mean = counted / counted.sum(dim=1, keepdim=True).clamp_min(1)

        def means(values: Tensor) -> Tensor:
            return mean @ torch.where(signals.active, values.double(), 0)

        def masked(rows: Tensor | None) -> Tensor | None:
            return None if rows is None else torch.where(signals.active[:, None], rows, 0)

        gram, gradients = masked(signals.gram), masked(signals.gradients)
        if gram is not None:
            gram = torch.where(signals.active, gram, 0).double()
        return replace(
            signals,
            active=counted.sum(dim=1) > 0,
            size=counted @ signals.size.double(),
            loss=means(signals.loss),
            loss_ratio=means(signals.loss_ratio),
            grad_norm=means(signals.grad_norm),
            gram=None if gram is None else mean @ gram @ mean.T,
            gradients=None if gradients is None else mean.to(gradients.dtype) @ gradients,
        )

    @property
    def frozen(self) -> Tensor | None:
        """Clients of the tasks whose weight the inner weighting froze."""
        inner = self.inner.frozen
        return None if inner is None else self._member.T @ inner.to(self._member) > 0

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), *self.inner.tensors()]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "tasks": self.inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.inner.load_state_dict(state["tasks"])
