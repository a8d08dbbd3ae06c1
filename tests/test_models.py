"""The paper's networks, the norm layer, the flat vector, and what does not fit together."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import toys
from fedgradnorm.models._flat import FlatNetwork, working_copy
from fedgradnorm.models._networks import network1, network2
from fedgradnorm.models._norm_layer import find_norm_layer

X = torch.ones(2, toys.FEATURES)


class Backwards(nn.Module):
    """Registers its layers in the opposite order of their use."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 5)
        self.first = nn.Linear(toys.FEATURES, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_network1_turns_a_grey_face_into_256_numbers() -> None:
    assert network1()(torch.zeros(3, 1, 40, 40)).shape == (3, 256)
    kernels = ((16, 1, 5), (48, 16, 3), (64, 48, 3), (64, 64, 2))
    assert count(network1()) == sum(o * i * k * k + o for o, i, k in kernels)


def test_network2_has_the_papers_parameter_count() -> None:
    assert network2()(torch.zeros(3, 256)).shape == (3, 256)
    assert count(network2()) == 3_936_512


@pytest.mark.parametrize(("make", "layers"), [(network1, 4), (network2, 5)])
def test_an_activation_follows_every_layer(make: Any, layers: int) -> None:
    for activation in (nn.ReLU, nn.Tanh):
        kinds = [type(module) for module in make(activation)]
        assert kinds.count(activation) == layers
        for i, kind in enumerate(kinds):
            assert kind not in (nn.Linear, nn.Conv2d) or kinds[i + 1] is activation


@pytest.mark.parametrize(
    ("make", "x", "norm_layer"),
    [
        (network1, torch.zeros(1, 1, 40, 40), ("9.weight", "9.bias")),
        (network2, torch.zeros(1, 256), ("8.weight", "8.bias")),
    ],
)
def test_the_norm_layer_is_the_last_layer_weight_and_bias(
    make: Any, x: Tensor, norm_layer: Any
) -> None:
    assert find_norm_layer(make(), x) == norm_layer


def test_the_norm_layer_is_the_layer_used_last_not_the_one_registered_last() -> None:
    assert find_norm_layer(Backwards(), X) == ("last.weight", "last.bias")


def test_the_norm_layer_passes_over_normalization_layers_and_frozen_ones() -> None:
    network = nn.Sequential(
        nn.Linear(toys.FEATURES, 8), nn.Linear(8, 5), nn.BatchNorm1d(5), nn.LayerNorm(5)
    )
    assert find_norm_layer(network, X) == ("1.weight", "1.bias")
    network[1].requires_grad_(requires_grad=False)
    assert find_norm_layer(network, X) == ("0.weight", "0.bias")


def test_a_network_of_normalization_layers_alone_still_has_a_norm_layer() -> None:
    assert find_norm_layer(nn.Sequential(nn.LayerNorm(6), nn.LayerNorm(6)), X) == (
        "1.weight",
        "1.bias",
    )


def test_a_user_names_layers_or_parameters() -> None:
    network = Backwards()
    assert find_norm_layer(network, X, "first") == ("first.weight", "first.bias")
    assert find_norm_layer(network, X, "first.weight") == ("first.weight",)
    assert find_norm_layer(network, X, ["last", "first.bias", "last"]) == (
        "last.weight",
        "last.bias",
        "first.bias",
    )


def test_a_norm_layer_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with pytest.raises(fgn.ModelError) as error:
        find_norm_layer(Backwards(), X, "frist")
    assert "norm layer 'frist'" in str(error.value)
    assert "did you mean 'first'?" in str(error.value)


def test_finding_the_norm_layer_leaves_no_trace() -> None:
    network = toys.noisy_network()
    before = copy.deepcopy(network.state_dict())
    find_norm_layer(network, X)
    assert network.training
    assert toys.same(before, network.state_dict())
    assert not any(m._forward_hooks for m in network.modules())


def test_the_flat_vector_and_the_modules_parameters_are_one() -> None:
    network = toys.network(torch.float32)
    flat = FlatNetwork(network)
    assert torch.equal(flat.vector, toys.parameters(network))
    flat.vector.fill_(0.5)
    assert all((p == 0.5).all() for p in flat.module.parameters())
    assert not (toys.parameters(network) == 0.5).any()  # a copy: the original is not touched
    for name, p in flat.module.named_parameters():
        assert p.data_ptr() == flat.vector[flat.slices[name]].data_ptr()


def test_frozen_parameters_stay_outside_the_flat_vector() -> None:
    network = toys.network(torch.float32)
    network[0].requires_grad_(requires_grad=False)
    flat = FlatNetwork(network)
    assert list(flat.slices) == ["2.weight", "2.bias"]
    before = flat.module[0].weight.clone()
    flat.vector.zero_()
    assert torch.equal(flat.module[0].weight, before)


def test_tied_parameters_stand_once_in_the_flat_vector() -> None:
    layer = nn.Linear(toys.FEATURES, toys.FEATURES)
    flat = FlatNetwork(nn.Sequential(layer, nn.ReLU(), layer))
    assert flat.vector.numel() == count(layer)
    flat.vector.zero_()
    assert (flat.module(X) == 0).all()


def test_a_network_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(fgn.ModelError, match="nothing to learn"):
        FlatNetwork(nn.Sequential(nn.Flatten()))


def test_a_network_of_mixed_precision_is_refused() -> None:
    with pytest.raises(fgn.ModelError, match="mixes"):
        FlatNetwork(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Linear(toys.FEATURES + 1, 4), "cannot take inputs of shape (6,)"),
        (nn.Unflatten(1, (2, 3)), "returns (2, 2, 3) for 2 rows"),
        (nn.LSTM(toys.FEATURES, 4), "returns tuple for 2 rows"),
    ],
    ids=["input", "shape", "tuple"],
)
def test_a_network_that_does_not_fit_names_the_client(network: nn.Module, message: str) -> None:
    if not list(network.parameters()):
        network = nn.Sequential(nn.Linear(toys.FEATURES, toys.FEATURES), network)
    with pytest.raises(fgn.ModelError) as error:
        fgn.train(network.double(), [toys.client("side", 30)], rounds=1)
    assert "client 'side'" in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (nn.Linear(99, 2), "gives 5 features, which its head cannot take"),
        (nn.Linear(5, 3), "its head gives (3,) numbers a row, its task needs 2"),
    ],
)
def test_a_head_that_does_not_fit_names_the_client(head: nn.Module, message: str) -> None:
    client = fgn.Client("side", toys.task("side"), train=toys.rows("side", 20), head=head)
    with pytest.raises(fgn.ModelError) as error:
        fgn.train(toys.network(), [client], rounds=1)
    assert "client 'side'" in str(error.value)
    assert message in str(error.value)


def test_clients_with_inputs_of_another_shape_are_named() -> None:
    x, y = toys.rows("side", 20)
    odd = fgn.Client("odd", toys.task("side"), train=(x[:, :3], y))
    with pytest.raises(fgn.ModelError, match="client 'odd'"):
        fgn.train(toys.network(), [toys.client("side", 20), odd], rounds=1)


def test_integers_feed_an_embedding_untouched() -> None:
    tokens = torch.arange(24).reshape(12, 2)
    network = nn.Sequential(nn.Embedding(24, 3), nn.Flatten(), nn.Linear(6, 4))
    client = fgn.Client("words", toys.task("side"), train=(tokens, torch.arange(12) % 2))
    run = fgn.train(network, [client], rounds=2)
    assert run.predict("words", tokens).shape == (12,)


@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_get_channels_last_and_give_the_same_numbers(channels: int) -> None:
    network = nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    ).double()
    flat = working_copy(network, toys.CPU)
    seen: list[Tensor] = []
    flat.module[0].register_forward_hook(lambda *told: seen.append(told[-1]))
    x = torch.randn(6, channels, 8, 8, dtype=torch.double)

    assert torch.allclose(flat.module(x), network(x), atol=1e-12)
    assert seen[0].stride(1) == 1
    ours, theirs = (
        torch.autograd.grad(one(x).square().sum(), list(one.parameters()))
        for one in (flat.module, network)
    )
    assert all(torch.allclose(*pair, atol=1e-12) for pair in zip(ours, theirs, strict=True))


def test_a_network_with_code_of_its_own_gets_images_as_they_are() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(1, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.convolution(x).view(len(x), -1)  # would refuse channels in another order

    class Stack(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[0](x).view(len(x), -1)

    inside = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Sequential(nn.ReLU(), Own()))
    x = torch.randn(2, 1, 8, 8)
    for network in (Own(), nn.Sequential(Own(), nn.ReLU()), inside, Stack(nn.Conv2d(1, 4, 3))):
        assert torch.equal(working_copy(network, toys.CPU).module(x), network(x))


def test_the_trained_network_carries_nothing_of_ours() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
    client = fgn.Client(
        "a", toys.task("side"), train=(torch.randn(12, 1, 8, 8), torch.arange(12) % 2)
    )
    trained = fgn.train(network, [client], rounds=1).network
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in trained.modules())
