"""Compiled functions: the same numbers, and no harm where there is no compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toys
from fedgradnorm import GradNorm
from fedgradnorm._federation.federation import Federation
from fedgradnorm._fusing import Fused


def twice(x: Tensor) -> Tensor:
    return x + x


def test_a_compiled_function_gives_the_same() -> None:
    x = torch.arange(5.0)
    fused = Fused(twice)
    assert fused(x).tolist() == fused(x).tolist() == twice(x).tolist()


def test_without_a_compiler_it_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def fail(*arguments: Any) -> Any:
            raise torch._dynamo.exc.TorchDynamoException("no working compiler\nand much more")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    fused = Fused(twice)
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        assert [fused(torch.ones(2)).tolist() for _ in range(2)] == [[2.0, 2.0]] * 2
    assert [r.getMessage() for r in caplog.records] == [
        "compile: twice runs as it is: no working compiler"
    ]


def test_what_the_function_itself_raises_is_not_taken_for_the_compilers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with pytest.raises(RuntimeError, match="size of tensor"):
        Fused(lambda x: x + torch.ones(3))(torch.ones(2))


def federation(dtype: torch.dtype) -> Federation:
    dense = toys.seeded(lambda: nn.Sequential(nn.Linear(toys.FEATURES, 8), nn.ReLU()), dtype)
    return toys.federation(dense, toys.clients(), GradNorm(), executor="joint")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fused_federation_takes_the_same_rounds(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    plain, fused = federation(dtype), federation(dtype)
    fused.server.fuse()
    for number in range(5):
        for one in (plain, fused):
            one.rounds(number, [one.names])
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(
        fused.server.shared, plain.server.shared, rtol=tolerance, atol=tolerance
    )
