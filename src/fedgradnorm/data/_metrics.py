"""Metrics of tasks in which one class is rare."""

from __future__ import annotations

import torch
from torch import Tensor


def auc(output: Tensor, target: Tensor) -> Tensor:
    """Area under the ROC curve of a two-class task: how often a 1 is ranked above a 0.

    A tie counts one half (Hanley and McNeil 1982). Where a split holds one class alone there is
    nothing to rank, and the area is that of a guess, 0.5.

    >>> scores = torch.tensor([[0.0, -1.0], [0.0, 2.0], [0.0, 0.5], [0.0, 2.0]])
    >>> auc(scores, torch.tensor([0, 1, 1, 0])).item()
    0.625
    """
    score = output[:, 1] - output[:, 0]
    ones, zeros = score[target == 1], score[target == 0].sort().values
    if not len(ones) or not len(zeros):
        return score.new_tensor(0.5)
    below = torch.searchsorted(zeros, ones)
    not_above = torch.searchsorted(zeros, ones, right=True)
    return (below + not_above).to(score.dtype).mean() / (2 * len(zeros))
