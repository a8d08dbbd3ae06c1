"""Nash-MTL: the clients bargain about the direction of the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgradnorm._checks import whole
from fedgradnorm.weighting._gram import GramWeighting

RIDGE, CLOSE = 1e-12, 1e-13
"""What is added to G's diagonal relative to its mean, and the Newton decrement that ends."""


class NashMTL(GramWeighting):
    r"""The Nash bargaining solution: weights with :math:`(G p)_i = 1 / p_i`.

    It maximizes :math:`\sum_i \log(g_i \cdot d)` over directions :math:`d = \sum_j p_j g_j` of
    bounded length. The condition is the gradient of a strictly convex function,

    .. math:: \min_{p > 0} \; \tfrac{1}{2} p^\top G p - \sum_i \log p_i ,

    which is self-concordant, so damped Newton steps find its minimum from any start. (The paper
    approximates it by a sequence of linearized convex programs, which stop short of the solution
    for some G.) The paper's bound on the length of the direction is left out, since all methods'
    weights sum to the number of clients.
    Source: Navon et al., "Multi-task learning as a bargaining game" (2022), arXiv 2202.01017,
    section 3.2.

    Args:
        iterations: Newton steps per round at most, 1 or more.
    """

    def __init__(self, iterations: int = 100) -> None:
        super().__init__()
        self.iterations = whole("Nash-MTL's iterations", iterations, 1)

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:  # noqa: ARG002
        """The bargain among the active clients."""
        return bargain(gram, self.iterations)


def bargain(gram: Tensor, iterations: int = 100) -> Tensor:
    """The p > 0 with G p = 1 / p, for a positive semidefinite G.

    Where gradients cancel, G is singular along a positive p and no finite solution exists; the
    ridge then selects one that points along it.
    """
    gram = gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    p = gram.diagonal().rsqrt()  # the solution if the gradients were orthogonal
    for _ in range(iterations):
        slope = gram @ p - 1 / p
        # The Hessian G + diag(1 / p^2), scaled by p on both sides to be well conditioned.
        hessian = torch.outer(p, p) * gram + torch.eye(len(p), dtype=p.dtype)
        scaled = torch.linalg.solve(hessian, p * slope)
        decrement = float((p * slope) @ scaled) ** 0.5
        p = p - p * scaled / (1 + decrement if decrement > 0.25 else 1)
        if decrement < CLOSE:
            break
    return p
