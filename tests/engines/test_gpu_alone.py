"""Clients that share nothing, on a GPU: rounds at once, and evaluations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedgradnorm as fgn
from fedgradnorm._federation.alone import SideBySide
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.run import Run
from fedgradnorm._training.trainer import Progress, Trainer
from oracle import mixed_clients

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

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


def test_evaluations_by_kernels_are_the_loops() -> None:
    clients = [
        fgn.Client(client.name, client.task, client.train, test=client.train)
        for client in mixed_clients((1, 40, 40), (60, 50, 10))
    ]
    torch.manual_seed(0)
    network = fgn.models.network1()
    settings = Settings(rounds=1, batch_size=16, share="none")
    ours, reference = (
        Trainer(network, clients, fgn.Equal(), replace(settings, engine=engine), device)
        for engine, device in (("auto", GPU), ("loop", torch.device("cpu")))
    )
    found, expected = (made.federations.evaluate("test") for made in (ours, reference))
    assert ours.federations._run.evaluates_together
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-4, abs=1e-4)
