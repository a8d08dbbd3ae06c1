"""Clients that share nothing, on a GPU: rounds at once, and kernels for convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
from fedgradnorm._engines.passes.convolution_stack import ConvolutionStack, network_stack
from fedgradnorm._engines.passes.network_stack import ModuleStack
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm._federation.alone import SideBySide
from fedgradnorm._optimizers import build
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.settings import Precision, Settings
from fedgradnorm._runs.run import Run
from fedgradnorm._training.trainer import Progress, Trainer
from fedgradnorm.models._flat import FlatNetwork
from oracle import mixed_clients

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # torch's, where autograd's thread is the first to multiply: of the reference here
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

GPU = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
NETWORKS = {"dense": ("network2", (256,)), "convolutions": ("network1", (1, 40, 40))}


def train(kind: str, dtype: torch.dtype, device: str, **settings: object) -> Run:
    name, shape = NETWORKS[kind]
    torch.manual_seed(0)
    network = getattr(fgn.models, name)().to(dtype)
    clients = mixed_clients(shape, (60, 50, 10))
    options: dict[str, object] = {
        "rounds": 10,
        "batch_size": 16,
        "seed": 1,
        "eval_every": 0,
        "share": "none",
    }
    options["weighting"] = fgn.Equal()
    return fgn.train(network, clients, device=device, **{**options, **settings})  # type: ignore[arg-type]


def distance(one: Run, other: Run) -> float:
    """The largest between two clients' networks, relative to their size."""
    found = []
    for name, client in one.clients.items():
        pair = (client.network, other.clients[name].network)
        a, b = (torch.cat([p.detach().flatten().double() for p in n.parameters()]) for n in pair)
        found.append(float((a - b).norm() / b.norm()))
    return max(found)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"head_steps": 3},
        {"shared_steps": 3},
        {"schedule": "together"},
        {"participation": 0.5},
        {"weighting": fgn.GradNorm()},
        {"weighting": fgn.GradNorm(), "head_steps": 3},
        {"server_optimizer": "adafactor"},
        {"server_schedule": "cosine"},
        {"head_schedule": "cosine"},
        {"compile": True},
    ],
    ids=lambda how: "-".join(how) or "plain",
)
def test_the_gpu_gives_the_loops_numbers(kind: str, how: dict[str, object]) -> None:
    reference = train(kind, torch.float64, "cpu", engine="loop", **how)
    ours = train(kind, torch.float64, "cuda", **how)
    assert distance(ours, reference) < 1e-10


# Small steps of SGD: see test_gpu.py.
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("how", [{}, {"head_steps": 3, "shared_steps": 3}, {"participation": 0.5}])
def test_in_float32_networks_differ_by_rounding(kind: str, how: dict[str, object]) -> None:
    how = {"server_optimizer": {"name": "sgd", "lr": 1e-3}, "lr": 1e-3, **how}
    reference = train(kind, torch.float32, "cpu", engine="loop", **how)
    assert distance(train(kind, torch.float32, "cuda", **how), reference) < 1e-4


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("how", [{}, {"compile": True}, {"precision": "tf32"}])
def test_one_seed_gives_one_run(kind: str, how: dict[str, object]) -> None:
    one, again = (train(kind, torch.float32, "cuda", **how) for _ in range(2))
    assert distance(one, again) == 0
    assert one.history.equals(again.history)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, kind: str) -> None:
    def stop(event: Progress) -> None:
        if event.round >= 5:
            raise KeyboardInterrupt

    how = {"checkpoint_every": 5}
    whole = train(kind, torch.float32, "cuda", **how)
    with pytest.raises(fgn.Interrupted):
        train(kind, torch.float32, "cuda", folder=tmp_path / "run", progress=stop, **how)
    resumed = train(kind, torch.float32, "cuda", folder=tmp_path / "run", resume=True, **how)
    assert distance(resumed, whole) == 0


@pytest.mark.parametrize("weighting", [fgn.Equal, fgn.GradNorm], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("first", [0, 8])
def test_one_that_goes_wrong_keeps_nobody_from_learning(
    weighting: type[fgn.Weighting], first: int
) -> None:
    clients = mixed_clients((256,), (60, 50, 40))
    settings = Settings(rounds=20, batch_size=16, share="none", eval_every=0)
    made = Trainer(fgn.models.network2(), clients, weighting(), settings, GPU)
    assert type(made.federations) is SideBySide
    while made.round < first:
        made.advance(first)
    made.federations[1].server.shared.data.fill_(torch.nan)
    before = [one.server.shared.data.clone() for one in made.federations]
    while not made.done:
        made.advance(30)
    moved = [
        bool((one.server.shared.data != was).any())
        for one, was in zip(made.federations, before, strict=True)
    ]
    assert moved[0]
    assert moved[2]
    assert bool(made.federations[1].server.shared.data.isnan().all())


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("share", ["none", "all"])
@pytest.mark.parametrize("metrics", [None, {"own": lambda output, _: output.mean()}])
def test_evaluations_are_the_loops(kind: str, share: str, metrics: object) -> None:
    name, shape = NETWORKS[kind]
    clients = []
    for client in mixed_clients(shape, (60, 50, 10)):
        task = replace(client.task, metrics={**client.task.metrics, **(metrics or {})})
        more = {"validation": client.train, "test": client.train}
        clients.append(fgn.Client(client.name, task, client.train, **more))
    torch.manual_seed(0)
    network = getattr(fgn.models, name)().double()
    ours, reference = (
        fgn.train(
            network, clients, rounds=6, eval_every=2, batch_size=16, share=share,
            weighting=fgn.Equal(), device=device, engine=engine,
        )
        for device, engine in (("cuda", "auto"), ("cpu", "loop"))
    )  # fmt: skip
    for column in ("loss", "accuracy", "mae", "r2"):
        found, expected = (torch.tensor(run.history[column]) for run in (ours, reference))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10, equal_nan=True)


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
