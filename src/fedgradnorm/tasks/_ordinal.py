"""Classes in an order: grades, stages, stars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm.tasks._kinds import Classification
from fedgradnorm.tasks._measures import (
    Metric,
    ordinal_accuracy,
    ordinal_cross_entropy,
    ordinal_distance,
    thresholds,
)

NARROWEST = 1e-3  # between two thresholds that a start puts apart


class Ordinal(Classification):
    """One of several classes in an order, from one output fewer: is it above class k?"""

    name, loss = "ordinal", staticmethod(ordinal_cross_entropy)
    loss_name = "ordinal cross-entropy"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": ordinal_accuracy,
        "mae": ordinal_distance,
    }
    least = 1

    def classes(self, outputs: int) -> int | None:
        """One more than there are thresholds."""
        return outputs + 1

    def answer(self, output: Tensor) -> Tensor:
        """The class that is as likely below as above: the median."""
        return (thresholds(output) > 0).sum(dim=1)

    def probability(self, output: Tensor) -> Tensor:
        """Of each class, [rows, classes]: P(above k - 1) - P(above k)."""
        above = thresholds(output).sigmoid()
        ends = above.new_ones(len(above), 1), above.new_zeros(len(above), 1)
        return torch.cat([ends[0], above], dim=1) - torch.cat([above, ends[1]], dim=1)

    def trivial(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:  # noqa: ARG002
        """The outputs whose thresholds are the log odds of "above class k", each seen once more."""
        above = torch.stack([(y > k).sum() for k in range(outputs)]).double()
        logits = ((above + 1) / (len(y) - above + 1)).log()
        gaps = (logits[:-1] - logits[1:]).clamp_min(NARROWEST)
        return torch.cat([logits[:1], gaps.expm1().log()])  # softplus turned round
