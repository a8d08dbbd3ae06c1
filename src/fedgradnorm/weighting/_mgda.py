"""Federated relatives of MGDA: the shortest vector in the hull of the clients' updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._checks import bounded, whole
from fedgradnorm.weighting._base import onto_simplex
from fedgradnorm.weighting._gram import GramWeighting

ITERATIONS, GAP = 1000, 1e-12


class FedMGDA(GramWeighting):
    """FedMGDA+: MGDA on unit updates, with a box around equal weights.

        lambda = argmin |sum_i lambda_i u_i|^2,  u_i = update_i / |update_i|,
                 lambda in the simplex, |lambda_i - 1/N| <= box;     p_i = lambda_i / |update_i|

    ``box`` = 0 averages unit updates, 1 is MGDA on them; in between nobody can be forgotten. The
    box's centre is 1/N, one of the two the paper names (the other: by data size).
    Source: Hu, Shaloudegi, Zhang, Yu, "Federated learning meets multi-objective optimization"
    (2022), arXiv 2006.11489, algorithm 1.

    Args:
        box: largest distance of a client's weight from 1/N, 0 to 1.
    """

    positive = False

    def __init__(self, box: float = 0.1) -> None:
        super().__init__()
        self.box = bounded("FedMGDA+'s box", box, 0, 1)

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """lambda_i / |update_i|."""
        length = gram.diagonal().sqrt()
        prior = 1 / len(names)
        unit = (gram / length / length[:, None]).numpy()
        low, high = max(0.0, prior - self.box), min(1.0, prior + self.box)
        return torch.from_numpy(shortest(unit, prior, low, high)) / length


class FedCMOO(GramWeighting):
    """FedCMOO's FindWeights: lambda follows MGDA's objective by projected gradient steps.

        lambda <- nearest point of the simplex to lambda - mixture_lr G lambda / (mean_i |g_i|)^2,
                  ``steps`` times a round;     p_i = N lambda_i

    lambda starts at 1/N and is kept from round to round, so the weights are smoother than MGDA's.
    The number of steps, their length and the division by the mean norm are those of the authors'
    code. Here G is exact and each client holds one objective, so the paper's compressed estimate of
    G and its local training on the weighted loss have no place: see docs/methods.md.
    Source: Askin, Sharma, Joshi, Joe-Wong, "Federated communication-efficient multi-objective
    optimization" (2025), arXiv 2410.16398.

    Args:
        mixture_lr: learning rate of the mixture, above 0.
        steps: steps of the mixture per round, 1 or more.
    """

    positive = False
    starts: ClassVar[Mapping[str, float]] = {**GramWeighting.starts, "mixture": 1.0}

    def __init__(self, mixture_lr: float = 0.001, steps: int = 1000) -> None:
        super().__init__()
        self.mixture_lr = bounded("FedCMOO's mixture_lr", mixture_lr, above=True)
        self.steps = whole("FedCMOO's steps", steps, 1)

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """lambda after this round's steps."""
        rows = [self.clients.index(name) for name in names]
        kept = self.rows["mixture"]
        start = _nearest(kept[rows].cpu() / len(rows))
        scaled = gram / gram.diagonal().sqrt().mean().square()
        mixture = torch.from_numpy(descend(scaled.numpy(), start, self.mixture_lr, self.steps))
        kept[rows] = (mixture * len(rows)).to(kept.device)
        return mixture


def descend(
    gram: NDArray[np.float64], start: NDArray[np.float64], lr: float, steps: int
) -> NDArray[np.float64]:
    """Projected gradient steps on 1/2 x^T G x over the simplex.

    While no row reaches zero, projecting only takes the mean off the gradient, so a step is one
    product with a fixed matrix; a step that leaves the simplex is projected in full.
    """
    inside = np.eye(len(gram)) - lr * (gram - gram.mean(axis=0))
    x = start
    for _ in range(steps):
        after = inside @ x
        if after.min() < 0:
            after = _nearest(torch.from_numpy(x - lr * (gram @ x)))
        if np.array_equal(after, x):
            break
        x = after
    return x


def _nearest(values: Tensor) -> NDArray[np.float64]:
    """The nearest point of the simplex."""
    found: NDArray[np.float64] = onto_simplex(values, torch.ones(len(values)) > 0).numpy()
    return found


def shortest(
    gram: NDArray[np.float64], start: float, low: float, high: float
) -> NDArray[np.float64]:
    """argmin x^T G x over {sum x = 1, low <= x_i <= high}, by exact steps along pairs of rows.

    The pair that gains most moves: the most negative slope that can grow, the steepest that can
    shrink. It goes as far as the parabola or the box allows (Platt 1998, sequential minimal
    optimisation).
    """
    x = np.full(len(gram), start)
    slope = gram @ x
    for _ in range(ITERATIONS):
        up = int(np.argmin(np.where(x < high, slope, np.inf)))
        down = int(np.argmax(np.where(x > low, slope, -np.inf)))
        gain = slope[down] - slope[up]
        if not gain > GAP:
            break
        bend = gram[up, up] + gram[down, down] - 2 * gram[up, down]
        longest = min(high - x[up], x[down] - low)
        step = min(longest, gain / bend) if bend > 0 else longest
        x[up], x[down] = min(x[up] + step, high), max(x[down] - step, low)
        slope = slope + step * (gram[:, up] - gram[:, down])
    return x
