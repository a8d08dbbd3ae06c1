"""GO4Align: tasks with a similar risk form a group, and a group has one weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import bounded, whole
from fedgradnorm.weighting._base import SMALLEST, Needs, Signals, Weighting, from_log, safe_log

LARGEST_STEP = 1e12
LONGEST_SEARCH = 300  # passes of K-means, which on a GPU may add in another order each time


class GO4Align(Weighting):
    r"""One weight per group of tasks, the mean of its tasks' risk indicators.

    .. math:: u_i = q_i \sum_j F_j / F_i, \qquad q_i \leftarrow q_i \, e^{-\beta F_i}, \qquad
              p_i = \text{mean of } u \text{ over the group of } i

    K-means on the numbers u makes the groups in each round. It starts at their quantiles, so
    groups do not depend on chance or on the order of clients.
    Source: Shen, Wang, Xiao, Van Noord, Worring, "GO4Align: Group optimization for multi-task
    alignment" (2024), arXiv 2404.06486; scale balance, smoothing and defaults as in their code.

    Args:
        groups: number of groups, 1 or more; with 1, all weights are equal.
        beta: how fast large losses lower a task's weight, 0 or more.
    """

    needs = Needs.LOSS
    starts: ClassVar[Mapping[str, float]] = {"log_share": 0.0}
    beyond_sums = "all clients' losses at once, to group them"
    capturable = False

    def __init__(self, groups: int = 2, beta: float = 1e-4) -> None:
        super().__init__()
        self.groups = whole("GO4Align's groups", groups, 1)
        self.beta = bounded("GO4Align's beta", beta)

    def weigh(self, signals: Signals) -> Tensor:
        active, share = signals.active, self.rows["log_share"]
        loss = torch.where(active, signals.loss.double(), 0)
        share -= self.beta * loss.clamp(0, LARGEST_STEP)
        indicator = from_log(share - safe_log(signals.loss, active), active)
        weight = torch.ones_like(indicator)
        weight[active] = group_means(indicator[active], self.groups).clamp_min(SMALLEST)
        return weight


def group_means(values: Tensor, groups: int) -> Tensor:
    """Each value's group mean, for groups by K-means in one dimension (Lloyd 1982).

    >>> group_means(torch.tensor([1.0, 9.0, 2.0, 11.0]), 2).tolist()
    [1.5, 10.0, 1.5, 10.0]
    """
    count = min(groups, len(values))
    places = (torch.arange(count, dtype=values.dtype) + 0.5) / count
    centers = torch.quantile(values, places.to(values.device))
    group = torch.full_like(values, -1, dtype=torch.long)
    for _ in range(LONGEST_SEARCH):
        nearest = (values[:, None] - centers).abs().argmin(1)
        if torch.equal(nearest, group):
            break
        group = nearest
        members = torch.zeros_like(centers).index_add_(0, group, torch.ones_like(values))
        sums = torch.zeros_like(centers).index_add_(0, group, values)
        centers = torch.where(members > 0, sums / members.clamp_min(1), centers)
    return centers[group]
