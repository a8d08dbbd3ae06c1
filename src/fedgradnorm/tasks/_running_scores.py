"""Loss and metrics of a split that comes in pieces: sums, where the whole is never in memory.

The mean loss keeps one number a row. Accuracies and mean errors are sums over pieces, and r2 is
1 - S / T with the targets' spread T from means and squares that are merged (Chan, Golub, LeVeque
1979). A metric by name, or a function of one's own, gets the outputs of all rows at the end: they
are kept, as small as the targets are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgradnorm.models._streamed.moments import Moments
from fedgradnorm.tasks._measures import OURS, explained, r_squared
from fedgradnorm.tasks._missing import known, labelled, mean_of_labelled
from fedgradnorm.tasks._split_metrics import Restoring, flat_rows, in_units, measured, one_number
from fedgradnorm.tasks._task import Task


class RunningScores:
    """What :meth:`Task.measure` gives for a split, of which pieces are added in turn."""

    def __init__(self, task: Task, scaling: Restoring | None = None) -> None:
        self.task, self.scaling = task, scaling
        self._losses: list[Tensor] = []
        self._counts: list[int] = []
        self._sums = {name: [0.0, 0.0] for name, one in task.metrics.items() if one in OURS}
        self._left, self._targets = 0.0, Moments()
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._whole = any(metric not in OURS for metric in task.metrics.values())

    def add(self, output: Tensor, target: Tensor) -> None:
        """Outputs and targets of some rows; those without a label count for nothing."""
        there = labelled(target)
        if not bool(there.all()):
            output, target = output[there], target[there]
        if not len(target):
            return
        task, target = self.task.for_targets(target), self.task.whole(target)
        losses = task.losses(output, target)
        if task.gaps and losses.ndim:
            losses = mean_of_labelled(losses[:, None], labelled(target)[:, None])
        self._losses.append(losses.detach())
        self._counts.append(len(target))
        outputs = task.outputs_of(output)
        if self._whole:
            self._kept.append((outputs.cpu(), target.cpu()))
        pair = in_units(task, outputs, target, self.scaling)
        self._add_sums(*flat_rows(task, *pair))

    def _add_sums(self, output: Tensor, target: Tensor) -> None:
        labels = float(known(target).sum())
        for name, (total, count) in self._sums.items():
            metric = self.task.metrics[name]
            if metric is r_squared:
                self._left += float((output - target).double().square().nansum())
                self._targets.add(target)
            else:
                value = one_number(name, metric(output, target))
                self._sums[name] = [total + value * labels, count + labels]

    def result(self) -> dict[str, float]:
        """The loss and every metric of all pieces, in the order of the task's own."""
        found = {"loss": self._loss()}
        others = {}
        if self._whole:
            output, target = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
            task = self.task.for_targets(target)
            others = measured(task, output, self.task.whole(target), self.scaling)
        for name, metric in self.task.metrics.items():
            if name not in self._sums:
                found[name] = others[name]
            elif metric is r_squared:
                targets = self._targets
                constant = (targets.low >= targets.high).all()
                left = torch.tensor(self._left, dtype=torch.float64)
                found[name] = float(explained(left, targets.square.sum(), constant))
            else:
                total, count = self._sums[name]
                found[name] = total / max(1.0, count)
        return found

    def _loss(self) -> float:
        """The mean over rows; of losses that are one number a piece, weighed by their rows."""
        if all(losses.ndim for losses in self._losses):
            return float(torch.cat(self._losses).mean())
        pairs = zip(self._losses, self._counts, strict=True)
        return sum(float(loss.mean()) * n for loss, n in pairs) / max(1, sum(self._counts))
