"""Our own GPU kernel on the way back through linear layers, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedgradnorm._engines.passes.dense import DensePass
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm.models._flat import FlatNetwork

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("rows", [1000, 1032, 4104])
@pytest.mark.parametrize("last", [True, False], ids=["relu last", "linear last"])
def test_turned_gradients_are_autograds(rows: int, last: bool) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(40, 100), nn.ReLU(), nn.Linear(100, 72), nn.ReLU()]
    layers += [nn.Linear(72, 24), *([nn.ReLU()] if last else [])]
    network = FlatNetwork(nn.Sequential(*layers), "cuda")
    gauge = ["4.weight", "4.bias"]
    assert DensePass.fits(network.module, gauge)
    x, signal = torch.randn(rows, 40, device="cuda"), torch.randn(rows, 24, device="cuda")
    owner = torch.arange(rows, device="cuda") % 4
    factors = torch.tensor([0.1, 1.0, 2.0, 0.5], device="cuda")
    output = network.module(x)
    parameters = list(network.module.parameters())
    weighted = signal * factors[owner][:, None]
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(output, parameters, weighted)])

    run = DensePass(network, gauge, Streams(torch.device("cuda")))
    run.fuse()
    assert run._turned is not None
    assert torch.allclose(run.forward(network.vector, x), output, atol=1e-5)
    run.measure(signal, [(slice(0, rows), rows)])
    found = run.backward(factors, owner)
    assert float((found - expected).norm() / expected.norm()) < 1e-5
