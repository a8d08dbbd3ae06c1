"""Batches drawn on a GPU are those that the CPU draws."""

from __future__ import annotations

import pytest
import torch

from fedgradnorm._engines.batched.row_windows import CpuRows, GpuRows
from fedgradnorm._round.batches import Batches

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("first", [0, 3, 1000])
@pytest.mark.parametrize("batch_size", [1, 8, None])
def test_the_same_rows(device: str, first: int, batch_size: int | None) -> None:
    sizes = {"a": 40, "b": 7, "c": 40, "d": 129, "e": 7}
    batches = Batches(sizes, batch_size, seed=5)
    begin = {"c": 0, "a": 40, "e": 80, "d": 87, "b": 216}
    theirs = GpuRows(batches, begin, torch.device(device)).draw(first, 11)
    assert torch.equal(theirs.cpu(), CpuRows(batches, begin, torch.device("cpu")).draw(first, 11))
