"""Two lines of linear algebra that every room of this one needs."""

from __future__ import annotations

import torch
from torch import Tensor


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix^-1 right, for one matrix or a stack of them with a right side each."""
    vectors = right.ndim == matrix.ndim - 1
    found: Tensor = torch.linalg.solve(matrix, right[..., None] if vectors else right)
    return found[..., 0] if vectors else found


def dot(matrices: Tensor, vectors: Tensor) -> Tensor:
    """matrix_i @ vector_i for every client."""
    return (matrices @ vectors[..., None])[..., 0]


def weighted(weights: Tensor, matrices: Tensor) -> Tensor:
    """sum_i p_i matrix_i."""
    return (weights[:, None, None] * matrices).sum(dim=0)
