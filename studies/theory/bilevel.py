"""Bilevel optimization by iterative differentiation (ITD), the frame of the paper's analysis.

    min_x f(x, y*(x))     where y*(x) solves a lower problem that depends on x

The paper's Algorithm 1: K outer steps on x; before each, D inner steps on y, warm-started from
where y stood. The outer gradient is either

    total    d/dx f(x, y_D(x)): differentiated through the D inner steps (the hypergradient), or
    partial  df/dx (x, y) at y = y_D, the lower variable taken as a constant.

FedGradNorm is the second with D = 1 (:mod:`studies.theory.lower` has it as code); ITD as it
is analyzed (Ji, Yang, Liang, "Bilevel optimization: convergence analysis and enhanced design",
2021) is the first. Where f depends on y the two end in different places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from studies.theory.algebra import solve

Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Bilevel:
    """``outer(x, y)`` is f; ``inner(x, y)`` is y after one inner step."""

    outer: Function
    inner: Function


def gradient_step(loss: Function, lr: float) -> Function:
    """The inner step of Algorithm 1: y - lr * d loss(x, y) / dy."""
    slope = grad(loss, argnums=1)
    return lambda x, y: y - lr * slope(x, y)


def itd_step(
    problem: Bilevel,
    x: Tensor,
    y: Tensor,
    *,
    inner_steps: int,
    lr: float,
    hypergradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """One outer step of Algorithm 1: D inner steps on y, then x <- x - lr * gradient."""

    def lower(here: Tensor) -> Tensor:
        moved = y
        for _ in range(inner_steps):
            moved = problem.inner(here, moved)
        return moved

    after = lower(x)
    if hypergradient:
        slope: Tensor = grad(lambda here: problem.outer(here, lower(here)))(x)
    else:
        slope = grad(problem.outer, argnums=0)(x, after)
    return x - lr * slope, after


def itd(
    problem: Bilevel,
    x: Tensor,
    y: Tensor,
    *,
    outer_steps: int,
    inner_steps: int,
    lr: float,
    hypergradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1: the path of x [K + 1, ...] and of y [K + 1, ...], start included."""
    xs, ys = [x], [y]
    for _ in range(outer_steps):
        x, y = itd_step(problem, x, y, inner_steps=inner_steps, lr=lr, hypergradient=hypergradient)
        xs.append(x)
        ys.append(y)
    return torch.stack(xs), torch.stack(ys)


@dataclass(frozen=True)
class QuadraticBilevel:
    """A bilevel problem with every answer in closed form.

        f(x, y) = 1/2 x'Qx + x'Ry + 1/2 y'Sy - a'x - b'y
        lower:    min_y 1/2 y'Gy - y'(Cx + e),   so y*(x) = G^-1 (Cx + e)

    At a rest point y = y*(x) whatever D is, for the inner steps are warm-started; what D decides
    is the derivative that ITD sees: J_D = (I - (I - eta G)^D) G^-1 C instead of J = G^-1 C.
    """

    q: Tensor
    r: Tensor
    s: Tensor
    a: Tensor
    b: Tensor
    g: Tensor
    c: Tensor
    e: Tensor
    inner_lr: float

    def bilevel(self) -> Bilevel:
        """The problem as :func:`itd` takes it, with gradient steps inside."""

        def lower(x: Tensor, y: Tensor) -> Tensor:
            return 0.5 * y @ self.g @ y - y @ (self.c @ x + self.e)

        return Bilevel(self.outer, gradient_step(lower, self.inner_lr))

    def outer(self, x: Tensor, y: Tensor) -> Tensor:
        """f(x, y)."""
        squares = 0.5 * x @ self.q @ x + x @ self.r @ y + 0.5 * y @ self.s @ y
        return squares - self.a @ x - self.b @ y

    def lower(self, x: Tensor) -> Tensor:
        """y*(x)."""
        return solve(self.g, self.c @ x + self.e)

    def value(self, x: Tensor) -> float:
        """f(x, y*(x)): what a bilevel method is to minimize."""
        return float(self.outer(x, self.lower(x)))

    def equilibrium(self) -> Tensor:
        """Where the partial gradient vanishes: (Q + RJ) x = a - R G^-1 e."""
        return self._rest(torch.zeros_like(self.c))

    def optimum(self, inner_steps: int | None = None) -> Tensor:
        """The minimizer of f(x, y*(x)); with ``inner_steps`` = D the limit of ITD of that depth."""
        return self._rest(self.jacobian(inner_steps))

    def jacobian(self, inner_steps: int | None = None) -> Tensor:
        """J = dy*/dx, or J_D: its value differentiated through D inner steps."""
        full = solve(self.g, self.c)
        if inner_steps is None:
            return full
        eye = torch.eye(len(self.g), dtype=self.g.dtype)
        left: Tensor = torch.linalg.matrix_power(eye - self.inner_lr * self.g, inner_steps)
        return (eye - left) @ full

    def _rest(self, seen: Tensor) -> Tensor:
        """x with df/dx + seen' df/dy = 0 at y = y*(x)."""
        slope, base = solve(self.g, self.c), solve(self.g, self.e)
        matrix = self.q + self.r @ slope + seen.T @ (self.r.T + self.s @ slope)
        right = self.a - self.r @ base - seen.T @ (self.s @ base - self.b)
        return solve(matrix, right)


def random_quadratic(seed: int = 0, upper: int = 3, below: int = 2) -> QuadraticBilevel:
    """A well-conditioned random instance on which the two limits differ."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def definite(size: int) -> Tensor:
        root = normal(size, size) / size
        return torch.eye(size, dtype=torch.float64) + root @ root.T

    return QuadraticBilevel(
        q=2 * definite(upper),
        r=0.3 * normal(upper, below),
        s=definite(below),
        a=normal(upper),
        b=normal(below),
        g=definite(below),
        c=0.5 * normal(below, upper),
        e=normal(below),
        inner_lr=0.2,
    )
