"""Kernels of our own on a GPU, against plain code in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import fedgradnorm as fgn
from fedgradnorm._engines.batched.closed_losses import (
    ClosedBinaryCrossEntropy,
    ClosedCrossEntropy,
    ClosedLoss,
    ClosedSquaredError,
    feature_signal,
    head_gradients,
)
from fedgradnorm._engines.passes.autograd import AutogradPass
from fedgradnorm._engines.passes.convolution_pass import ConvolutionPass, convolution_pass
from fedgradnorm._engines.passes.convolution_stack import ConvolutionStack, network_stack
from fedgradnorm._engines.passes.network_stack import ModuleStack
from fedgradnorm._engines.passes.shared_pass import SharedRows
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm._optimizers import build
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.settings import Precision
from fedgradnorm.models._flat import FlatNetwork

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GPU = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

FORMS: dict[str, Callable[[int], ClosedLoss]] = {
    "cross-entropy": lambda _: ClosedCrossEntropy(torch.zeros(1, device=GPU).double()),
    "squared error": ClosedSquaredError,
    "binary": ClosedBinaryCrossEntropy,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [(4, 32, 256, 6), (3, 5, 70, 17), (2, 100, 16, 33), (1, 1, 3, 2)])
def test_kernels_of_heads_do_what_the_closed_forms_do(
    form: str, sizes: tuple[int, int, int, int]
) -> None:
    from fedgradnorm._engines.passes.kernels import heads

    clients, batch, features, outputs = sizes
    torch.manual_seed(0)
    loss = FORMS[form](outputs)
    z, weight = (torch.randn(clients, n, features, device=GPU) for n in (batch, outputs))
    bias, factor = torch.randn(clients, outputs, device=GPU), torch.rand(clients, 1, 1, device=GPU)
    y = torch.rand(clients * batch, outputs, device=GPU)
    if form == "cross-entropy":
        y = torch.randint(0, outputs, (clients * batch,), device=GPU)
    given = factor, weight / features**0.5, bias, z
    double = [part.double() for part in given]
    for ours, plain in (
        (heads.head_gradients, head_gradients),
        (heads.feature_signal, feature_signal),
    ):
        expected = plain(loss, *double, y if form == "cross-entropy" else y.double())
        for found, wanted in zip(ours(loss, *given, y), expected, strict=True):
            assert found.shape == wanted.shape
            assert float((found - wanted).norm()) < 2e-6 * float(wanted.norm()) + 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_of_rows_does_what_torch_does(dtype: torch.dtype, decay: float) -> None:
    from fedgradnorm._engines.passes.adam_of_rows import adam_of_rows

    torch.manual_seed(0)
    wide = torch.randn(3, 1600, dtype=dtype, device=GPU)[:, :1500]
    theirs = [nn.Parameter(row.clone()) for row in wide]
    reference = torch.optim.Adam(theirs, lr=1e-2, weight_decay=decay)
    ours = [nn.Parameter(row) for row in wide]
    for row, parameter in zip(wide, ours, strict=True):
        parameter.data = row
    how = {"name": "adam", "lr": 1e-2, "weight_decay": decay}
    owners = [build([parameter], how) for parameter in ours]
    rows = adam_of_rows(wide, owners)
    assert rows is not None
    for step in range(6):
        gradients = torch.randn(3, 1500, dtype=dtype, device=GPU)
        for one, other, gradient in zip(ours, theirs, gradients, strict=True):
            one.grad, other.grad = gradient, gradient.clone()
        reference.step()
        assert rows.ready() is (step > 0)
        if step in (0, 3):  # by themselves
            for owner in owners:
                owner.step()
        else:
            rows.step(gradients, owners[0].param_groups[0])
    near = 1e-6 if dtype == torch.float32 else 1e-14
    for one, other in zip(ours, theirs, strict=True):
        assert float((one - other).detach().norm() / other.detach().norm()) < near


STACKS = {
    "network 1": (fgn.models.network1, (1, 40, 40)),
    "pooled before the cut, an odd picture": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten()
        ),
        (1, 14, 15),
    ),
    "strides, pads, linear layers": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 20, (3, 2)),
            nn.ReLU(), nn.Flatten(), nn.Linear(120, 70), nn.ReLU(), nn.Linear(70, 6),
        ),
        (3, 7, 8),
    ),
    "cut when it is flat": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.ReLU()),
        (1, 3, 3),
    ),
    "a pool at the end": (
        lambda: nn.Sequential(nn.Conv2d(1, 33, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        (1, 9, 9),
    ),
    "many channels": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 100, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(100, 70, 2, padding=1),
            nn.ReLU(), nn.Flatten(),
        ),
        (2, 5, 7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize(("precision", "near"), [("float32", 2e-6), ("tf32", 2e-2)])
def test_kernels_of_convolutions_do_what_autograd_does(
    name: str, precision: Precision, near: float
) -> None:
    torch.manual_seed(0)
    make, shape = STACKS[name]
    network = make()
    stretches = [(slice(0, 9), 3), (slice(9, 19), 5)]
    with numerics(precision, GPU):
        x = torch.randn(19, *shape, device=GPU)
        flat = FlatNetwork(network, GPU)
        five = flat.vector.expand(5, -1)
        ours = network_stack(flat, five, x, stretches, Streams(GPU), dense=False)
        assert isinstance(ours, ConvolutionStack)
        theirs = ModuleStack(FlatNetwork(network.double(), GPU), False, x[:2].double())
        vector = FlatNetwork(network.float(), GPU).vector
        wide = torch.zeros(5, len(vector) + 9, device=GPU)[:, : len(vector)]
        wide += vector + 0.1 * vector.abs().mean() * torch.randn_like(wide)
        found, expected = torch.empty_like(wide), torch.empty_like(wide).double()
        for add in (False, True):
            z = ours.forward(wide, x, stretches)
            plain = theirs.forward(wide.double(), x.double(), stretches)
            signal = torch.randn_like(z)
            ours.gradient(signal, found, 0.5, add=add)
            theirs.gradient(signal.double(), expected, 0.5, add=add)
        assert torch.equal(ours.features(wide, x, stretches), z)
    assert float((z - plain).norm() / plain.norm()) < near
    assert float((found - expected).norm() / expected.norm()) < near


PARTS = [(slice(0, 9), 3), (slice(9, 19), 5)]
OWNER = [0] * 3 + [1] * 3 + [2] * 3 + [3] * 5 + [4] * 5


def rows_of_two_tasks() -> SharedRows:
    """The first two clients are tasks of one, so their rows pass once: 16 for 19 places."""
    first = torch.tensor([0, 1, 2, *range(6, 19)])
    back = torch.tensor([0, 1, 2, 0, 1, 2, *range(3, 16)])
    turn = torch.tensor([0] * 3 + [1] * 3 + [0] * 13)
    places = torch.full((16, 2), 19)
    places[:, 0], places[:3, 1] = first, torch.tensor([3, 4, 5])
    return SharedRows(*(part.to(GPU) for part in (first, back, turn, places)))


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("wanted", [("weight", "bias"), ("weight",), ("bias",)], ids="-".join)
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_pass_of_convolutions_is_autograds(
    name: str, wanted: tuple[str, ...], tasks: int
) -> None:
    torch.manual_seed(0)
    make, shape = STACKS[name]
    network = make()
    rows = rows_of_two_tasks() if tasks == 2 else None
    x = torch.randn(16 if rows else 19, *shape, device=GPU)
    flat, double = FlatNetwork(network, GPU), FlatNetwork(network.double(), GPU)
    gauge = [key for key in list(flat.slices)[-2:] if key.rpartition(".")[2] in wanted]
    with numerics("float32", GPU):
        assert ConvolutionPass.fits(flat, gauge, x, 19)
        ours = convolution_pass(flat, gauge, x, PARTS, Streams(GPU))
        theirs = AutogradPass(double, gauge)
        assert ours is not None
        owner, factors = torch.tensor(OWNER, device=GPU), torch.rand(5, device=GPU)
        z = ours.forward(flat.vector, x, rows)
        plain = theirs.forward(double.vector, x.double(), rows)
        signal = torch.randn_like(z)
        lengths = ours.measure(signal, PARTS), theirs.measure(signal.double(), PARTS)
        gradient = ours.backward(factors, owner)
        expected = theirs.backward(factors.double(), owner)
    for found, reference in [(z, plain), *zip(*lengths, strict=True), (gradient, expected)]:
        assert float((found - reference).norm() / reference.norm()) < 2e-6


def test_a_gauge_on_another_layer_is_left_to_autograd() -> None:
    flat, x = FlatNetwork(fgn.models.network1(), GPU), torch.zeros(4, 1, 40, 40, device=GPU)
    assert ConvolutionPass.fits(flat, ["9.weight", "9.bias"], x, 4)
    assert not ConvolutionPass.fits(flat, ["6.weight"], x, 4)
    assert not ConvolutionPass.fits(flat, ["9.weight"], x.double(), 4)
