"""Compiled functions: the same numbers, and no harm where there is no compiler."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toys
from fedgradnorm import GradNorm
from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines.passes.dense import DensePass
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm._federation.federation import Federation
from fedgradnorm._fusing import Fused
from fedgradnorm.models._flat import FlatNetwork


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
    return toys.federation(dense, toys.clients(), GradNorm(), engine="joint")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fused_federation_takes_the_same_rounds(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    plain, fused = federation(dtype), federation(dtype)
    fused.server.fuse()
    fused.engine.fuse()
    for number in range(5):
        for one in (plain, fused):
            one.rounds(number, [one.names])
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(
        fused.server.shared.data, plain.server.shared.data, rtol=tolerance, atol=tolerance
    )


def test_without_triton_gradients_are_not_turned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "fedgradnorm._engines.passes.kernels.backward", raising=False)
    network = FlatNetwork(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    run = DensePass(network, ["0.weight"], Streams(torch.device("cpu")))
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        assert run._turned_descent() is None
    assert "gradients are not turned" in caplog.text


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_our_adam_is_torchs(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    torch.manual_seed(0)
    start = torch.zeros(300, dtype=dtype)
    both = [nn.Parameter(start.clone()) for _ in range(2)]
    ours, theirs = (optimizers.build([x], {"name": "adam", "lr": 0.1}) for x in both)
    optimizers.fuse(ours)
    assert "step" in vars(ours)
    for _ in range(50):
        gradient = torch.randn(300, dtype=dtype) * torch.logspace(-8, 2, 300)
        for x, optimizer in zip(both, (ours, theirs), strict=True):
            x.grad = gradient.clone().to(dtype)
            optimizer.step()
    torch.testing.assert_close(both[0], both[1], rtol=tolerance, atol=tolerance)
    mine, other = (o.state_dict()["state"][0] for o in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("spec", "tensors"),
    [
        ({"name": "sgd", "lr": 0.1}, 1),
        ({"name": "adam", "weight_decay": 1}, 1),
        ({"name": "adam"}, 2),
    ],
)
def test_other_optimizers_stay_as_they_are(spec: dict[str, Any], tensors: int) -> None:
    some = [nn.Parameter(torch.zeros(2)) for _ in range(tensors)]
    optimizer = optimizers.build(some, {"lr": 0.1, **spec})
    optimizers.fuse(optimizer)
    assert "step" not in vars(optimizer)
