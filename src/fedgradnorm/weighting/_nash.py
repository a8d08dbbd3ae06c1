"""Nash-MTL: the clients bargain about the direction."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._checks import whole
from fedgradnorm._errors import ConfigError
from fedgradnorm.weighting._gram import GramWeighting

Vector = NDArray[np.float64]

CLOSE, STILL, TINY = 1e-3, 1e-6, 1e-10  # |G p - 1/p|, |p - last p|, beside a p of 0: as published


class NashMTL(GramWeighting):
    """The Nash bargaining solution: G p = 1 / p, approached from the last round's p.

    By at most ``iterations`` convex programs a round, each the bargain linearised at the last
    answer. The answers are TorchJD's, which keeps its last one for a single fixed set of clients;
    here it is a row of state per client, and the program is set up once for each number of them.
    The paper's bound on the length of the direction is left out, since all methods' weights sum to
    the number of clients.
    Source: Navon et al., "Multi-task learning as a bargaining game" (2022), arXiv 2202.01017,
    algorithm 1 and section 3.2.

    Args:
        iterations: most convex programs to solve per round, 1 or more.
    """

    starts: ClassVar[Mapping[str, float]] = {**GramWeighting.starts, "bargain": 1.0}

    def __init__(self, iterations: int = 20) -> None:
        super().__init__()
        self.iterations = whole("Nash-MTL's iterations", iterations, 1)
        self._bargains: dict[int, Bargain] = {}
        _cvxpy()  # what is not installed is said now, not in the first round

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """The bargain among the clients that are here."""
        if len(names) not in self._bargains:
            self._bargains[len(names)] = Bargain(len(names))
        rows = [self.clients.index(name) for name in names]
        kept = self.rows["bargain"]
        last = kept[rows].cpu().numpy()
        found = self._bargains[len(names)].solve(gram.numpy(), last, self.iterations)
        weights = torch.from_numpy(found)
        usable = torch.isfinite(weights).all() and bool((weights > 0).all())
        kept[rows] = weights.to(kept) if usable else torch.ones_like(kept[rows])
        return weights


class Bargain:
    """The convex program of ``count`` clients, stated so that only its numbers change.

    The norm of G is the unit. With s the slope of sum_i log p_i + log (G p)_i at the last p:

        minimise over p:  sum_i (G p)_i + s . p     where log p_i + log (G p)_i >= 0
    """

    def __init__(self, count: int) -> None:
        cp = _cvxpy()
        self.p = cp.Variable(count, nonneg=True)
        self.gram = cp.Parameter((count, count))
        self.slope = cp.Parameter(count)
        self.unit = cp.Parameter(pos=True)
        agreed = -cp.log(self.p * self.unit) - cp.log(self.gram @ self.p) <= 0
        self.program = cp.Problem(cp.Minimize(self.slope @ self.p), [agreed])

    def solve(self, gram: Vector, p: Vector, iterations: int) -> Vector:
        """Programs from ``p`` on, until one is answered or changes nothing more."""
        self.unit.value = np.linalg.norm(gram)
        self.gram.value = gram = gram / self.unit.value
        for _ in range(iterations):
            answer = self._step(gram, p)
            if answer is None or np.linalg.norm(answer - p) < STILL:
                break
            if np.linalg.norm(gram @ p - 1 / (p + TINY)) < CLOSE:
                break
            p = answer
        return p

    def _step(self, gram: Vector, p: Vector) -> Vector | None:
        cp = _cvxpy()
        bend = 1 / p + gram @ (1 / (gram @ p))
        try:
            self.slope.value = gram.sum(axis=0) + bend / self.unit.value
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the solver's advice
                self.program.solve(solver=cp.ECOS, warm_start=True, max_iters=100)
        except (cp.SolverError, ValueError):
            return None
        found: Vector | None = self.p.value
        return found


def _cvxpy() -> Any:
    try:
        cvxpy = import_module("cvxpy")
        import_module("ecos")  # its solver for logarithms
    except ImportError as error:
        raise ConfigError(
            f"NashMTL needs solvers that are not all here ({error}); "
            "pip install 'fedgradnorm[methods]'"
        ) from error
    return cvxpy
