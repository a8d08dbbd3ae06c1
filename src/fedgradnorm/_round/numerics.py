"""How PyTorch multiplies and adds while a run is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedgradnorm._round.settings import Precision


@contextmanager
def numerics(precision: Precision, device: torch.device) -> Iterator[None]:
    """Products in the precision asked for, sums in one order; the process's own settings return.

    cuDNN's fastest gradients of a convolution add in whatever order threads arrive, and its
    benchmark mode picks by the clock. Both make two runs of one seed differ, so neither is used.
    Nor is an autocast around the call: the run's own ``precision`` says what has fewer digits.
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
