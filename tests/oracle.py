"""The one-file example as an oracle: run it next to ``fgn.train`` and compare everything."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import fedgradnorm as fgn
import flat
from fedgradnorm._federation.heads import make_head
from fedgradnorm._round.batches import Batches
from fedgradnorm.models._norm_layer import find_norm_layer

EXAMPLE = Path(__file__).parents[1] / "examples" / "fedgradnorm_in_one_file.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fedgradnorm_in_one_file", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mixed_clients(shape: tuple[int, ...], sizes: tuple[int, int, int] = (40, 25, 33)) -> list[Any]:
    """Three clients, three kinds of task, three sizes; one of them loud."""
    rng = np.random.default_rng(5)
    x = [rng.normal(size=(n, *shape)) for n in sizes]
    flat = [part.reshape(len(part), -1) for part in x]
    return [
        fgn.Client("classes", fgn.classification(4), (x[0], np.arange(sizes[0]) % 4)),
        fgn.Client("numbers", fgn.regression(3), (x[1], 20 * flat[1][:, :3])),
        fgn.Client("two", fgn.classification(2), (x[2], (flat[2][:, 0] > 0).astype(int))),
    ]


def compare_with_oracle(
    network: torch.nn.Module,
    clients: list[Any],
    rounds: int,
    optimizer: str,
    head_steps: int,
    shared_steps: int,
    participation: Any,
    engines: Sequence[str] = ("loop",),
    batch_size: int = 8,
    lr: float = 1e-3,
) -> dict[str, dict[str, float]]:
    """Largest differences between ``fgn.train`` and the oracle, for every engine."""
    runs = {
        executor: flat.train(
            network,
            clients,
            weighting=fgn.GradNorm(gamma=0.9, optimizer=optimizer),
            rounds=rounds,
            batch_size=batch_size,
            head_steps=head_steps,
            shared_steps=shared_steps,
            lr=lr,
            head_init="random",
            head_optimizer=optimizer,
            server_optimizer=optimizer,
            participation=participation,
            executor=executor,
            device="cpu",
            seed=3,
            eval_every=0,
        )
        for executor in engines
    }
    run = runs[engines[0]]
    dtype = next(network.parameters()).dtype
    data = {
        c.name: tuple(t.to(dtype) if t.is_floating_point() else t for t in c.train) for c in clients
    }
    steps = max(head_steps, shared_steps)
    batches = Batches({c.name: c.size for c in clients}, batch_size, seed=3)

    def batch(name: str, k: int, s: int) -> tuple[torch.Tensor, ...]:
        rows = torch.from_numpy(batches.rows(name, k * steps + s))
        return tuple(part[rows] for part in data[name])

    shared, heads, weights = load_example().fedgradnorm(
        network,
        {c.name: make_head(network, c, seed=3) for c in clients},
        {c.name: c.task.loss for c in clients},
        data,
        batch,
        find_norm_layer(network, data[clients[0].name][0]),
        rounds,
        active=lambda k: run_active(run, k),
        head_steps=head_steps,
        shared_steps=shared_steps,
        lr=lr,
        optimizer=optimizer,
    )
    return {name: gaps(run, network, shared, heads, weights) for name, run in runs.items()}


def gaps(run: Any, start: Any, shared: Any, heads: Any, weights: Any) -> dict[str, float]:
    """How far a run is from the oracle's network, heads and weights, and from where it started."""
    history = run.history[run.history.split == "batch"]
    return {
        "shared": _gap(run.network.state_dict(), shared.state_dict()),
        "heads": max(_gap(run.heads[n].state_dict(), heads[n].state_dict()) for n in heads),
        "weights": max(
            abs(row.weight - weights[row["round"] - 1][row.client]) for _, row in history.iterrows()
        ),
        "moved": _gap(run.network.state_dict(), start.state_dict()),
    }


def run_active(run: Any, k: int) -> list[str]:
    return [r["client"] for r in run.table.rows if r["split"] == "batch" and r["round"] == k + 1]


def _gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[key] - b[key]).abs().max()) for key in a)
