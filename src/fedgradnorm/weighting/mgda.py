"""Federated relatives of MGDA: the shortest vector in the hull of the clients' updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm.errors import ConfigError
from fedgradnorm.weighting.gram import GramWeighting
from fedgradnorm.weighting.rows import onto_simplex

ITERATIONS, GAP = 1000, 1e-12


class FedMGDA(GramWeighting):
    """FedMGDA+: MGDA on unit updates, with a box around equal weights.

        lambda = argmin |sum_i lambda_i u_i|^2,  u_i = update_i / |update_i|,
                 lambda in the simplex, |lambda_i - 1/N| <= box;     p_i = lambda_i / |update_i|

    ``box`` = 0 averages unit updates, 1 is MGDA on them; in between nobody can be forgotten.
    Source: Hu et al., "Federated learning meets multi-objective optimization" (2022), algorithm 1.
    """

    positive = False

    def __init__(self, box: float = 0.1) -> None:
        super().__init__()
        if not 0 <= box <= 1:
            raise ConfigError(f"FedMGDA+'s box must be in [0, 1], not {box!r}")
        self.box = box

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """lambda_i / |update_i|."""
        length = gram.diagonal().sqrt()
        prior = 1 / len(names)
        unit = (gram / length / length[:, None]).numpy()
        low, high = max(0.0, prior - self.box), min(1.0, prior + self.box)
        return torch.from_numpy(shortest(unit, prior, low, high)) / length


class FedCMOO(GramWeighting):
    """FedCMOO's server step: lambda follows MGDA's objective by projected gradient steps.

        lambda <- nearest point of the simplex to lambda - mixture_lr G lambda,
                  ``steps`` times a round;     p_i = N lambda_i

    with G divided by its trace, so that ``mixture_lr`` has no unit.

    lambda is kept from round to round, so the weights are smoother than MGDA's. The paper's
    compressed estimate of G and its local training on the weighted loss have no place here, where
    each client holds one objective: see docs/methods.md.
    Source: Askin et al., "Federated communication-efficient multi-objective optimization" (2025).
    """

    positive = False
    starts: ClassVar[Mapping[str, float]] = {**GramWeighting.starts, "mixture": 1.0}

    def __init__(self, mixture_lr: float = 0.5, steps: int = 10) -> None:
        super().__init__()
        if not 0 < mixture_lr < float("inf"):
            raise ConfigError(f"FedCMOO's mixture_lr must be > 0, not {mixture_lr!r}")
        if steps < 1:
            raise ConfigError(f"FedCMOO's steps must be >= 1, not {steps!r}")
        self.mixture_lr, self.steps = mixture_lr, steps

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """lambda after this round's steps."""
        rows = [self.clients.index(name) for name in names]
        kept = self.rows["mixture"]
        here = torch.ones(len(rows), dtype=torch.bool)
        mixture = onto_simplex(kept[rows].cpu() / len(rows), here)
        for _ in range(self.steps):
            mixture = onto_simplex(
                mixture - self.mixture_lr * (gram @ mixture) / gram.trace(), here
            )
        kept[rows] = (mixture * len(rows)).to(kept.device)
        return mixture


def shortest(
    gram: NDArray[np.float64], start: float, low: float, high: float
) -> NDArray[np.float64]:
    """argmin x^T G x over {sum x = 1, low <= x_i <= high}, by exact steps along pairs of rows.

    The pair that gains most (the most negative slope that can grow, the steepest that can shrink)
    moves as far as the parabola or the box allows (Platt 1998, sequential minimal optimisation).
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
        room = min(high - x[up], x[down] - low)
        step = min(room, gain / bend) if bend > 0 else room
        x[up], x[down] = min(x[up] + step, high), max(x[down] - step, low)
        slope = slope + step * (gram[:, up] - gram[:, down])
    return x
