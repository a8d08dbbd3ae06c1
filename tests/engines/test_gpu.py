"""Rounds on a GPU, captured and compiled, against the plain loop on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedgradnorm as fgn
from fedgradnorm._runs.run import Run
from fedgradnorm._training.trainer import Progress
from oracle import mixed_clients
from shared_heads import train as train_some_of_one_task
from shared_heads import vectors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

NETWORKS = {
    "dense": ("network2", (256,)),
    "convolutions": ("network1", (1, 40, 40)),
}


def train(kind: str, dtype: torch.dtype, device: str, **settings: object) -> Run:
    name, shape = NETWORKS[kind]
    torch.manual_seed(0)
    network = getattr(fgn.models, name)().to(dtype)
    clients = mixed_clients(shape, (400, 250, 330))
    options = {"rounds": 50, "batch_size": 32, "seed": 1, "eval_every": 0, **settings}
    return fgn.train(network, clients, device=device, **options)  # type: ignore[arg-type]


def distance(one: Run, other: Run) -> float:
    """Between two runs' networks, relative to their size."""
    a, b = (
        torch.cat([p.detach().flatten().double() for p in run.network.parameters()])
        for run in (one, other)
    )
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("steps", [(1, 1), (3, 1), (1, 5)])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_gpu_gives_the_loops_numbers(kind: str, steps: tuple[int, int], compiled: bool) -> None:
    options = {"head_steps": steps[0], "shared_steps": steps[1]}
    reference = train(kind, torch.float64, "cpu", engine="loop", **options)
    ours = train(kind, torch.float64, "cuda", compile=compiled, **options)
    assert distance(ours, reference) < 1e-10
    columns = ["loss", "loss_ratio", "gauge_norm", "weight"]
    batch = reference.history["split"] == "batch"
    expected, found = (run.history.loc[batch, columns] for run in (reference, ours))
    torch.testing.assert_close(
        torch.tensor(found.to_numpy()), torch.tensor(expected.to_numpy()), rtol=1e-8, atol=1e-10
    )


# Adam makes a whole step of a gradient that is nothing but rounding, so two float32 runs part even
# on one CPU: half a unit in the last place, at random, opens another ReLU after some 25 rounds and
# moves the dense network by 2e-3 in 50, and the convolutions part at once. Small steps of SGD show
# the engine (the same noise moves the dense network by 3e-6, and by 3e-3 at ten times this rate).
# Heads that begin at the targets bring that nearer: on one CPU joint and loop are then 5e-5 apart
# after 20 rounds of Adam, and 4e-7 with heads that begin at random.
FLOAT32 = {
    "dense, Adam": ("dense", {"rounds": 20, "head_start": "random"}),
    "dense, SGD": ("dense", {"server_optimizer": {"name": "sgd", "lr": 0.01}}),
    "convolutions, SGD": ("convolutions", {"server_optimizer": {"name": "sgd", "lr": 1e-3}}),
}


@pytest.mark.parametrize("case", FLOAT32)
@pytest.mark.parametrize("compiled", [False, True])
def test_in_float32_losses_and_network_differ_by_rounding(case: str, compiled: bool) -> None:
    kind, how = FLOAT32[case]
    reference = train(kind, torch.float32, "cpu", engine="loop", **how)
    ours = train(kind, torch.float32, "cuda", compile=compiled, **how)
    assert distance(ours, reference) < 1e-4
    batch = reference.history["split"] == "batch"
    expected, found = (run.history.loc[batch, "loss"].to_numpy() for run in (reference, ours))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_is_near_float32(kind: str, steps: int, compiled: bool) -> None:
    how = {"rounds": 20, "shared_steps": steps}
    reference = train(kind, torch.float32, "cuda", **how)
    ours = train(kind, torch.float32, "cuda", precision="bf16", compile=compiled, **how)
    assert all(p.dtype == torch.float32 for p in ours.network.parameters())
    batch = reference.history["split"] == "batch"
    expected, found = (run.history.loc[batch, "loss"].to_numpy() for run in (reference, ours))
    assert abs(found / expected - 1).max() > 1e-4  # more than rounding
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0.05, atol=0)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("how", [{}, {"compile": True}, {"precision": "bf16"}, {"shared_steps": 3}])
def test_one_seed_gives_one_run(kind: str, how: dict[str, object]) -> None:
    one, again = (train(kind, torch.float32, "cuda", **how) for _ in range(2))
    assert distance(one, again) == 0
    assert one.history.equals(again.history)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, kind: str, compiled: bool) -> None:
    def stop(event: Progress) -> None:
        if event.round >= 20:
            raise KeyboardInterrupt

    how = {"compile": compiled, "checkpoint_every": 5}
    whole = train(kind, torch.float32, "cuda", **how)
    with pytest.raises(fgn.Interrupted):
        train(kind, torch.float32, "cuda", folder=tmp_path / "run", progress=stop, **how)
    resumed = train(kind, torch.float32, "cuda", folder=tmp_path / "run", resume=True, **how)
    assert distance(resumed, whole) == 0


@pytest.mark.parametrize("heads", ["task", "all"])
@pytest.mark.parametrize("how", [{}, {"participation": 0.5}, {"shared_steps": 3}])
def test_shared_heads_are_the_loops(heads: str, how: dict[str, object]) -> None:
    reference = vectors(train_some_of_one_task(heads, rounds=20, **how).heads)
    ours = train_some_of_one_task(heads, rounds=20, device="cuda", engine="auto", **how)
    for name, head in vectors(ours.heads).items():
        torch.testing.assert_close(head.cpu(), reference[name], rtol=0, atol=1e-10)
