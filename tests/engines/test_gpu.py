"""Rounds on a GPU, captured and compiled, against the plain loop on the CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.trainer import Trainer
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
    options = {"rounds": 16, "batch_size": 32, "seed": 1, "eval_every": 0, **settings}
    return flat.train(network, clients, device=device, **options)  # type: ignore[arg-type]


@cache
def reference_of(kind: str, head_steps: int, shared_steps: int) -> Run:
    """The loop's run on the CPU, which several tests compare with."""
    how = {"head_steps": head_steps, "shared_steps": shared_steps}
    return train(kind, torch.float64, "cpu", executor="loop", **how)


def train_alone(kind: str, dtype: torch.dtype, device: str, **settings: object) -> Run:
    """Clients that share nothing; one has fewer examples than a batch."""
    name, shape = NETWORKS[kind]
    torch.manual_seed(0)
    network = getattr(fgn.models, name)().to(dtype)
    options: dict[str, object] = {"rounds": 10, "batch_size": 16, "seed": 1, "eval_every": 0}
    options |= {"share": "none", "weighting": fgn.Equal(), "device": device, **settings}
    return flat.train(network, mixed_clients(shape, (60, 50, 10)), **options)  # type: ignore[arg-type]


def distance(one: Run, other: Run) -> float:
    """The largest between two runs' networks, relative to their size."""
    found = []
    for name, network in one.networks.items():
        pair = (network, other.networks[name])
        a, b = (torch.cat([p.detach().flatten().double() for p in n.parameters()]) for n in pair)
        found.append(float((a - b).norm() / b.norm()))
    return max(found)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(
    ("steps", "compiled"), [((1, 1), False), ((1, 1), True), ((3, 1), False), ((1, 3), False)]
)
def test_the_gpu_gives_the_loops_numbers(kind: str, steps: tuple[int, int], compiled: bool) -> None:
    options = {"head_steps": steps[0], "shared_steps": steps[1]}
    reference = reference_of(kind, *steps)
    ours = train(kind, torch.float64, "cuda", compile=compiled, **options)
    assert distance(ours, reference) < 1e-10
    columns = ["loss", "loss_ratio", "grad_norm", "weight"]
    batch = reference.history["split"] == "batch"
    expected, found = (run.history.loc[batch, columns] for run in (reference, ours))
    torch.testing.assert_close(
        torch.tensor(found.to_numpy()), torch.tensor(expected.to_numpy()), rtol=1e-8, atol=1e-10
    )


# Adam makes a whole step of a gradient that is nothing but rounding, so two float32 runs part even
# on one CPU: there, this network is 8e-7 from float64's after 4 rounds, 3e-4 after 8 and 5e-3 after
# 16. Small steps of SGD show the engine for longer.
FLOAT32 = {
    "dense, Adam": ("dense", {"head_init": "random", "rounds": 4}),
    "dense, SGD": ("dense", {"server_optimizer": {"name": "sgd", "lr": 0.01}}),
    "convolutions, SGD": ("convolutions", {"server_optimizer": {"name": "sgd", "lr": 1e-3}}),
}


@pytest.mark.parametrize("case", FLOAT32)
@pytest.mark.parametrize("compiled", [False, True])
def test_in_float32_losses_and_network_differ_by_rounding(case: str, compiled: bool) -> None:
    kind, how = FLOAT32[case]
    reference = train(kind, torch.float32, "cpu", executor="loop", **how)
    ours = train(kind, torch.float32, "cuda", compile=compiled, **how)
    assert distance(ours, reference) < 1e-4
    batch = reference.history["split"] == "batch"
    expected, found = (run.history.loc[batch, "loss"].to_numpy() for run in (reference, ours))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_is_near_float32(kind: str, steps: int, compiled: bool) -> None:
    how = {"rounds": 6, "shared_steps": steps}  # losses are .3 % apart; after 10 rounds up to 19 %
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
        if event.round >= 10:
            raise KeyboardInterrupt

    how = {"compile": compiled, "checkpoint_every": 5}
    whole = train(kind, torch.float32, "cuda", **how)
    with pytest.raises(fgn.Interrupted):
        train(kind, torch.float32, "cuda", folder=tmp_path / "run", progress=stop, **how)
    resumed = train(kind, torch.float32, "cuda", folder=tmp_path / "run", resume=True, **how)
    assert distance(resumed, whole) == 0


@pytest.mark.parametrize("own", [None, "bias"])
@pytest.mark.parametrize("heads", ["task", "all"])
@pytest.mark.parametrize("how", [{}, {"participation": 0.5}, {"shared_steps": 3}])
def test_shared_heads_are_the_loops(heads: str, how: dict[str, object], own: str | None) -> None:
    how = {**how, "head_own": own}
    reference = vectors(train_some_of_one_task(heads, rounds=20, **how).heads)
    ours = train_some_of_one_task(heads, rounds=20, device="cuda", executor="auto", **how)
    for name, head in vectors(ours.heads).items():
        torch.testing.assert_close(head.cpu(), reference[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"head_steps": 3},
        {"shared_steps": 3},
        {"shared_steps": 3, "sends": "model"},
        {"phases": "joint"},
        {"participation": 0.5},
        {"server_optimizer": "adafactor"},
        {"server_schedule": "cosine"},
        {"head_schedule": "cosine"},
        {"compile": True},
    ],
    ids=lambda how: "-".join(how) or "plain",
)
def test_clients_alone_have_the_loops_numbers(kind: str, how: dict[str, object]) -> None:
    reference = train_alone(kind, torch.float64, "cpu", executor="loop", **how)
    assert distance(train_alone(kind, torch.float64, "cuda", **how), reference) < 1e-10


# Small steps of SGD: see FLOAT32.
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("how", [{}, {"head_steps": 3, "shared_steps": 3}, {"participation": 0.5}])
def test_clients_alone_in_float32_differ_by_rounding(kind: str, how: dict[str, object]) -> None:
    how = {"server_optimizer": {"name": "sgd", "lr": 1e-3}, "lr": 1e-3, **how}
    reference = train_alone(kind, torch.float32, "cpu", executor="loop", **how)
    assert distance(train_alone(kind, torch.float32, "cuda", **how), reference) < 1e-4


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("how", [{}, {"compile": True}, {"precision": "tf32"}])
def test_one_seed_gives_one_run_alone(kind: str, how: dict[str, object]) -> None:
    one, again = (train_alone(kind, torch.float32, "cuda", **how) for _ in range(2))
    assert distance(one, again) == 0
    assert one.history.equals(again.history)


@pytest.mark.parametrize("kind", NETWORKS)
def test_clients_alone_resume_exactly(tmp_path: Path, kind: str) -> None:
    def stop(event: Progress) -> None:
        if event.round >= 5:
            raise KeyboardInterrupt

    how: dict[str, object] = {"checkpoint_every": 5}
    whole = train_alone(kind, torch.float32, "cuda", **how)
    how["folder"] = tmp_path / "run"
    with pytest.raises(fgn.Interrupted):
        train_alone(kind, torch.float32, "cuda", progress=stop, **how)
    resumed = train_alone(kind, torch.float32, "cuda", resume=True, **how)
    assert distance(resumed, whole) == 0


@pytest.mark.parametrize("first", [0, 8])
def test_one_that_goes_wrong_keeps_nobody_from_learning(first: int) -> None:
    clients = mixed_clients((256,), (60, 50, 40))
    settings = Settings(rounds=20, batch_size=16, share="none", eval_every=0)
    network = fgn.models.network2()
    made = Trainer(network, clients, fgn.Equal(), settings, torch.device("cuda"))
    assert not made.federation.shares
    while made.round < first:
        made.advance(first)
    spoilt = clients[1].name
    broken = {"network": torch.full_like(made.federation.part(spoilt)["network"], torch.inf)}
    made.federation.give(spoilt, made.federation.part(spoilt) | broken)
    before = {name: made.federation.part(name)["network"] for name in made.names}
    while not made.done:
        made.advance(30)
    after = {name: made.federation.part(name)["network"] for name in made.names}
    for name in made.names:
        if name == spoilt:
            assert bool(after[name].isinf().all())
        else:
            assert bool((after[name] != before[name]).any())


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
        flat.train(
            network, clients, rounds=6, eval_every=2, batch_size=16, share=share,
            weighting=fgn.Equal(), device=device, executor=executor,
        )
        for device, executor in (("cuda", "auto"), ("cpu", "loop"))
    )  # fmt: skip
    for column in ("loss", "accuracy", "mae", "r2"):
        found, expected = (torch.tensor(run.history[column]) for run in (ours, reference))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10, equal_nan=True)


def dropping() -> nn.Module:
    """A small CNN with dropout and batch statistics."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(8 * 9 * 9, 32), nn.ReLU(), nn.Dropout(0.5),
    )  # fmt: skip


AVERAGING = {
    "shared_steps": 3, "phases": "joint", "sends": "model", "heads": "task",
    "server_optimizer": {"name": "sgd", "lr": 1.0}, "participation": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("how", [{"shared_steps": 3, "head_steps": 2}, AVERAGING])
def test_dropout_in_a_graph_resumes_bit_for_bit(tmp_path: Path, how: dict[str, object]) -> None:
    clients = [
        replace(client, name=f"{client.name}-{k}", task=replace(client.task, name=client.name))
        for k in range(4)
        for client in mixed_clients((1, 40, 40), (60, 60, 60))
    ]
    options: dict[str, object] = {"rounds": 30, "batch_size": 16, "eval_every": 0, "seed": 3, **how}
    options |= {"device": "cuda", "first_loss": "first_round", "checkpoint_every": 5}

    def stop(event: Progress) -> None:
        if event.round >= 15:
            raise KeyboardInterrupt

    whole = flat.train(dropping(), clients, **options)  # type: ignore[arg-type]
    options["folder"] = tmp_path / "run"
    with pytest.raises(fgn.Interrupted):
        flat.train(dropping(), clients, progress=stop, **options)  # type: ignore[arg-type]
    resumed = flat.train(dropping(), clients, resume=True, **options)  # type: ignore[arg-type]
    assert distance(resumed, whole) == 0
