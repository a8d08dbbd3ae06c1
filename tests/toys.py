"""Small clients and networks for tests: three tasks of different kinds, sizes and loudness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedgradnorm as fgn
from fedgradnorm._engines import Engine
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import Equal, Weighting

FEATURES = 6
NAMES = ("corner", "side", "place")
CPU = torch.device("cpu")


def rows(name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels or targets of a toy task."""
    generator = np.random.default_rng(sum(map(ord, name)) + size)
    x = generator.normal(size=(size, FEATURES))
    if name == "corner":
        y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    elif name == "side":
        y = (x[:, 2] > 0).astype(np.int64)
    else:
        y = 20 * x[:, 3:5] + generator.normal(size=(size, 2))
    return x, y


def task(kind: str, /, **options: Any) -> fgn.Task:
    kinds: dict[str, Callable[..., fgn.Task]] = {
        "corner": lambda **o: fgn.classification(3, **o),
        "side": lambda **o: fgn.classification(2, **o),
        "place": lambda **o: fgn.regression(2, **o),
    }
    return kinds[kind](**options)


def client(name: str = "corner", size: int = 48, kind: str | None = None, **options: Any):
    """A client called ``name`` with the toy task ``kind`` (its own name by default)."""
    kind = kind or name
    return fgn.Client(name, task(kind, **options), train=rows(kind, size), test=rows(kind, 20))


def clients() -> list[fgn.Client]:
    """Two classifications and a loud regression, of 48, 30 and 24 rows."""
    return [client(name, size) for name, size in zip(NAMES, (48, 30, 24), strict=True)]


def seeded(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    """A module with the same start values every time, without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().to(dtype)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    return seeded(
        lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh()), dtype
    )


def noisy_network(dtype: torch.dtype = torch.float32, bias: bool = True) -> nn.Module:
    """With running statistics and dropout: what a client must keep and a seed must decide.

    ``bias`` is the one before the batch-norm, which takes it out again.
    """
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(FEATURES, 8, bias=bias),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(8, 5),
        ),
        dtype,
    )


def federation(
    network: nn.Module,
    clients: list[fgn.Client],
    weighting: Weighting | None = None,
    **settings: Any,
) -> Federation:
    settings = {"batch_size": 8, "lr": 0.05, "executor": "loop", **settings}
    return Federation(network, clients, weighting or Equal(), Settings(**settings), CPU)


def batch(engine: Engine, name: str, number: int) -> tuple[Tensor, Tensor]:
    """A client's training batch with this number, counted from the start of the run."""
    x, y = engine.examples.split(name, "train")
    rows = torch.from_numpy(engine.examples.batches.rows(name, number))
    return x[rows], y[rows]


def head(federation: Federation, name: str) -> nn.Module:
    """A copy of a client's head."""
    return federation.engine.exported(name).head


def heads(engine: Any) -> dict[str, nn.Module]:
    """Copies of all clients' heads."""
    return {name: one.head for name, one in engine.exported_all().items()}


def first_loss(federation: Federation, name: str) -> float | None:
    """A client's loss before any training; None while it is not known."""
    found = float(federation.engine.client_state(name)["first_loss"])
    return None if np.isnan(found) else found


def buffers(federation: Federation, name: str) -> dict[str, Tensor]:
    """A client's own running statistics and private layers of the network."""
    return federation.engine.exported(name).parts


def row(federation: Any, name: str) -> dict[str, Tensor]:
    """All that a federation keeps of a client between rounds, as copies."""
    return federation.engine.client_state(name)


def parameters(module: nn.Module) -> Tensor:
    """All trainable parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])


def same(left: Any, right: Any) -> bool:
    """Whether two nested states are bit-for-bit equal; NaN is equal to NaN."""
    if isinstance(left, Tensor):
        alike = isinstance(right, Tensor) and left.dtype == right.dtype
        alike = alike and left.shape == right.shape
        return alike and torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def interrupted(train: Callable[..., fgn.Run], at: int, **options: Any) -> None:
    """Start a training and stop it after ``at`` rounds."""

    def stop(event: Any) -> None:
        if event.round == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(progress=stop, **options)


class Visits(fgn.tasks.Kind):
    """How often something happens: a Poisson regression."""

    name = "visits"

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(output, target, reduction="none").mean(dim=1)

    def target(self, where: str, y: Tensor, outputs: int) -> Tensor:  # noqa: ARG002
        if (y < 0).any():
            raise fgn.DataError(f"{where}: counts must be 0 or more")
        return y

    def answer(self, output: Tensor) -> Tensor:
        return output.exp()

    metrics = {"mae": lambda output, target: (output.exp() - target).abs().mean()}  # noqa: RUF012
