"""Clients that share nothing, networks for them, and what it is to train the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import toys
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.trainer import Trainer

ROUNDS = 8
BASE = {"rounds": ROUNDS, "batch_size": 8, "lr": 0.01, "share": "none", "eval_every": 4}


def mlp() -> nn.Module:
    return toys.seeded(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU())
    )


def open_end() -> nn.Module:
    return toys.seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)))


def conv() -> nn.Module:
    return toys.seeded(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten()
        )
    )


def half_frozen() -> nn.Module:
    network = toys.network()
    network[0].bias.requires_grad_(False)
    return network


def clients(validation: bool = True) -> list[fgn.Client]:
    """Six of three kinds, of several sizes: some with the same heads, some with a shorter batch."""
    sizes = {"corner": (48, 5), "side": (30, 24), "place": (24, 7)}
    return [
        fgn.Client(
            f"{kind}-{size}",
            toys.task(kind),
            train=toys.rows(kind, size),
            validation=toys.rows(kind, 11) if validation else None,
            test=toys.rows(kind, 20),
        )
        for kind, both in sizes.items()
        for size in both
    ]


def trainer(network: nn.Module, those: list[fgn.Client], executor: str, **more: Any) -> Trainer:
    weighting = more.pop("weighting", fgn.Equal)
    settings = Settings(**{**BASE, "executor": executor, **more})
    made = Trainer(network, those, weighting(), settings, toys.CPU)
    if settings.share == "none":
        assert not made.federation.shares
    return made


def finished(made: Trainer) -> Trainer:
    """All of its rounds, evaluated as a run is."""
    made.train()
    return made


def assert_close(left: Any, right: Any, tolerance: float = 1e-10) -> None:
    """Nested states with the same keys, whose numbers differ by no more than rounding."""
    if isinstance(left, Tensor):
        torch.testing.assert_close(left, right, rtol=0, atol=tolerance, equal_nan=True)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_close(left[key], right[key], tolerance)
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=tolerance, abs=tolerance, nan_ok=True)
    else:
        assert left == right


def by_client(state: Any) -> Any:
    """The same state with a row per client: executors may put clients into other parts."""
    if not isinstance(state, dict):
        return state
    if "parts" not in state:
        return {key: by_client(value) for key, value in state.items()}
    return {
        name: {key: table[k] for key, table in part["tables"].items()}
        for part in state["parts"]
        for k, name in enumerate(part["names"])
    }


def assert_same_training(one: Trainer, other: Trainer) -> None:
    assert_close(by_client(one.state_dict()), by_client(other.state_dict()))
    assert_close(one.history.rows, other.history.rows)
