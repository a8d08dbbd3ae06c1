"""Convex federated problems whose answers are known, as clients of the real engine.

Client i of N holds A_i, B_i, c_i and the loss

    F_i(w, h_i) = 1/2 |A_i w + B_i h_i - c_i|^2 + lambda/2 (|w|^2 + |h_i|^2)

with w shared and h_i its head. The two ridge terms are data like any other: lambda/2 |w|^2 is the
squared error of the rows (sqrt(lambda) I, 0) with target 0. So the clients are plain regressions,
the shared network one linear layer without bias, and nothing in the engine knows of theory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm.tasks._making import regression
from studies.theory.algebra import dot, solve, weighted


class SharedColumns(nn.Module):
    """The shared network: (a, b) -> (a . w, b), a row at a time."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(len(start), 1, bias=False, dtype=start.dtype)
        self.linear.weight.data.copy_(start)

    def forward(self, x: Tensor) -> Tensor:
        """a . w, and the head's columns untouched."""
        size = self.linear.in_features
        return torch.cat([self.linear(x[:, :size]), x[:, size:]], dim=1)


class OwnColumns(nn.Module):
    """A client's head: (a . w, b) -> a . w + b . h, with h = 0 at the start."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.linear.weight)

    def forward(self, features: Tensor) -> Tensor:
        """The prediction of each row."""
        own: Tensor = self.linear(features[:, 1:])
        return features[:, :1] + own


@dataclass(frozen=True)
class ConvexProblem:
    """N coupled ridge regressions; ``a`` [N, rows, d], ``b`` [N, rows, k], ``c`` [N, rows]."""

    a: Tensor
    b: Tensor
    c: Tensor
    ridge: float = 0.1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Clients N, shared parameters d, head parameters k."""
        return len(self.a), self.a.shape[2], self.b.shape[2]

    @property
    def names(self) -> list[str]:
        """The clients' names, in the order of the rows."""
        return [f"client {i + 1}" for i in range(len(self.a))]

    @cached_property
    def ww(self) -> Tensor:
        """d^2 F_i / dw^2 = A_i' A_i + lambda I."""
        return self.a.mT @ self.a + self.ridge * torch.eye(self.shape[1], dtype=self.a.dtype)

    @cached_property
    def hh(self) -> Tensor:
        """d^2 F_i / dh^2 = B_i' B_i + lambda I."""
        return self.b.mT @ self.b + self.ridge * torch.eye(self.shape[2], dtype=self.a.dtype)

    @cached_property
    def wh(self) -> Tensor:
        """d^2 F_i / dw dh = A_i' B_i."""
        return self.a.mT @ self.b

    @cached_property
    def schur(self) -> Tensor:
        """K_i = ww - wh hh^-1 wh': the Hessian of min_h F_i(w, h)."""
        return self.ww - self.wh @ solve(self.hh, self.wh.mT)

    @cached_property
    def pull(self) -> Tensor:
        """s_i = A_i' c_i - wh hh^-1 B_i' c_i, so that grad min_h F_i = K_i w - s_i."""
        inner = solve(self.hh, dot(self.b.mT, self.c))
        return dot(self.a.mT, self.c) - dot(self.wh, inner)

    def losses(self, w: Tensor, heads: Tensor) -> Tensor:
        """F_i(w, h_i) of every client."""
        error = self.a @ w + dot(self.b, heads) - self.c
        size = w.square().sum() + heads.square().sum(dim=1)
        return 0.5 * error.square().sum(dim=1) + 0.5 * self.ridge * size

    def shared_gradients(self, w: Tensor, heads: Tensor) -> Tensor:
        """dF_i / dw, a row per client."""
        return self.ww @ w + dot(self.wh, heads) - dot(self.a.mT, self.c)

    def head_gradients(self, w: Tensor, heads: Tensor) -> Tensor:
        """dF_i / dh_i, a row per client."""
        return dot(self.hh, heads) + self.wh.mT @ w - dot(self.b.mT, self.c)

    def best_heads(self, w: Tensor) -> Tensor:
        """h_i*(w) = hh^-1 (B_i' c_i - wh' w)."""
        return solve(self.hh, dot(self.b.mT, self.c) - self.wh.mT @ w)

    def optimum(self, weights: Tensor, mixing: Tensor | None = None) -> Tensor:
        """w* of sum_i p_i F_i with every head at its best: (sum p_i M_i K_i) w = sum p_i M_i s_i.

        ``mixing`` M_i multiplies client i's gradient; it is the identity unless clients take
        several local steps (:func:`studies.theory.simulated_rounds.local_mixing`).
        """
        schur, pull = self.schur, self.pull
        if mixing is not None:
            schur, pull = mixing @ schur, dot(mixing, pull)
        return solve(weighted(weights, schur), weights @ pull)

    def network(self, start: Tensor) -> nn.Module:
        """The shared network that holds w, at ``start``."""
        return SharedColumns(start)

    def clients(self) -> list[Client]:
        """The problem as clients: regressions on the rows of (A_i, B_i) and of the two ridges."""
        _, d, k = self.shape
        ridge = self.ridge**0.5 * torch.eye(d + k, dtype=self.a.dtype)
        clients = []
        for name, a, b, c in zip(self.names, self.a, self.b, self.c, strict=True):
            x = torch.cat([torch.cat([a, b], dim=1), ridge])
            y = torch.cat([c, c.new_zeros(d + k)])[:, None]
            # regression() takes the mean over rows: half a sum of squares is rows / 2 times that.
            task = regression(1, loss_scale=len(x) / 2)
            clients.append(Client(name, task, train=(x, y), head=OwnColumns(k)))
        return clients


def conflicting(
    seed: int = 0,
    scales: Sequence[float] = (0.7, 1.0, 1.4),
    shared: int = 4,
    own: int = 2,
    rows: int = 8,
    ridge: float = 0.1,
) -> ConvexProblem:
    """A random problem whose clients want different w; ``scales`` are their loudnesses.

    The gradients do not vanish together, as they do not for real tasks that share one network.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn / math.sqrt(rows)

    size, n = torch.tensor(scales, dtype=torch.float64), len(scales)
    a, b = normal(n, rows, shared), normal(n, rows, own)
    goal = rows**0.5 * normal(n, shared)  # what each client alone would want
    c = dot(a, 2 * goal) + normal(n, rows)
    return ConvexProblem(size[:, None, None] * a, size[:, None, None] * b, size[:, None] * c, ridge)
