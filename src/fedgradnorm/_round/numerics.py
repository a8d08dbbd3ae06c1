"""PyTorch's precision and determinism settings during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedgradnorm._round.settings import Precision


@contextmanager
def numerics(precision: Precision, device: torch.device) -> Iterator[None]:
    """Set the precision of products and deterministic sums; restore the settings afterwards.

    cuDNN's fastest convolution gradients add in arbitrary order, and its benchmark mode chooses by
    timing. Both make two runs with one seed differ, so neither is used. An autocast around the call
    is disabled: the run's own ``precision`` decides.
    """
    cudnn = torch.backends.cudnn
    products = torch.get_float32_matmul_precision()
    before = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = precision == "tf32", True, False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
