"""Layers with a weight per client are what one client after another computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgradnorm._engines import stacked_layers
from fedgradnorm._engines.joint import in_branches
from fedgradnorm._engines.stacked_layers import StackedLayers

CLIENTS, BATCH = 4, 3
IMAGES = (BATCH, 2, 11, 9)
LAYERS = {
    "image": (nn.Conv2d(2, 3, 3), IMAGES),
    "stride and padding": (nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), IMAGES),
    "dilation": (nn.Conv2d(2, 3, 3, dilation=2, bias=False), IMAGES),
    "same padding": (nn.Conv2d(2, 3, 3, padding="same"), IMAGES),
    "groups": (nn.Conv2d(2, 4, 3, groups=2), IMAGES),
    "many channels of small images": (nn.Conv2d(2, 80, 3), IMAGES),
    "signal": (nn.Conv1d(2, 3, 4, stride=2, padding=1), (BATCH, 2, 12)),
}


def results(layer: nn.Module, x: Tensor, weights: dict[str, Tensor], stacked: bool) -> list[Tensor]:
    """Outputs and all gradients, client by client or under vmap."""

    def one(own: dict[str, Tensor], rows: Tensor) -> Tensor:
        return functional_call(layer, own, (rows,))

    if stacked:
        with StackedLayers():
            y = vmap(one)(weights, x)
    else:
        each = [{k: w[i] for k, w in weights.items()} for i in range(CLIENTS)]
        y = torch.stack([one(own, rows) for own, rows in zip(each, x, strict=True)])
    found = torch.autograd.grad(y.square().sum(), [x, *weights.values()])
    return [y.detach(), *found]


@pytest.mark.parametrize("size", ["small", "large", "huge"])
@pytest.mark.parametrize("case", LAYERS)
def test_stacked_layers_are_those_of_each_client(
    case: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size == "large":  # columns are made again, and images' gradients come from one convolution
        monkeypatch.setattr(stacked_layers, "KEPT", 0)
        monkeypatch.setattr(stacked_layers, "FOLDED", 0)
    elif size == "huge":
        monkeypatch.setattr(stacked_layers, "LARGEST", 0)
    template, shape = LAYERS[case]
    layer, draw = template.double(), torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, *shape, dtype=torch.float64, generator=draw).requires_grad_()
    weights = {
        key: torch.randn(CLIENTS, *p.shape, dtype=p.dtype, generator=draw).requires_grad_()
        for key, p in layer.named_parameters()
    }
    plain, stacked = (results(layer, x, weights, way) for way in (False, True))
    for one, other in zip(plain, stacked, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_inputs_may_be_the_same_for_all_clients() -> None:
    layer, x = nn.Conv2d(2, 3, 3).double(), torch.randn(IMAGES, dtype=torch.float64)
    weights = torch.randn(CLIENTS, 3, 2, 3, 3, dtype=torch.float64)
    with StackedLayers():
        found = vmap(lambda w: functional_call(layer, {"weight": w}, (x,)))(weights)
    wanted = [functional_call(layer, {"weight": w}, (x,)) for w in weights]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-10, atol=1e-10)


def test_a_weight_that_all_clients_share_is_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacked_layers._Convolution, "vmap", None)
    layer = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(189, 2))
    x = torch.randn(CLIENTS, *IMAGES)
    with StackedLayers():
        found = vmap(layer)(x)
    torch.testing.assert_close(found, layer(x.flatten(0, 1)).unflatten(0, (CLIENTS, BATCH)))


class Named(nn.Module):
    """Calls its layers by keyword, and uses vmap itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 3, 2), nn.Conv1d(3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.first.weight, self.first.bias
        hidden = nn.functional.conv1d(input=x, weight=weight, bias=bias).tanh()
        return vmap(lambda row: nn.functional.conv1d(row[None], self.second.weight)[0])(hidden)


def test_networks_may_call_layers_by_keyword_and_use_vmap() -> None:
    layer, x = Named().double(), torch.randn(CLIENTS, BATCH, 2, 6, dtype=torch.float64)
    weights = {
        key: torch.randn(CLIENTS, *p.shape, dtype=p.dtype).requires_grad_()
        for key, p in layer.named_parameters()
        if key != "second.bias"
    }
    plain, stacked = (results(layer, x.requires_grad_(), weights, way) for way in (False, True))
    for one, other in zip(plain, stacked, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_branches_give_their_results_in_order() -> None:
    pieces = [lambda k=k: k * k for k in range(4)]
    assert in_branches(pieces, torch.device("cpu")) == [0, 1, 4, 9]
