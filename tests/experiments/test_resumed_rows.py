"""What clients have is in the checkpoint, also of those that never participated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys


def clients(count: int) -> list[fgn.Client]:
    found = []
    for k in range(count):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        found.append(fgn.Client(f"c{k}", fgn.regression(1), (x, x[:, :1] + k % 3)))
    return found


def train(count: int, **how: Any) -> fgn.Run:
    network = toys.seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double())
    options = {"batch_size": None, "lr": 0.05, "eval_every": 0, "device": "cpu", **how}
    return flat.train(network, clients(count), **options)


def heads(run: fgn.Run) -> dict[str, Tensor]:
    return {
        name: torch.cat([p.detach().flatten() for p in client.head.parameters()])
        for name, client in run.clients.items()
    }


@pytest.mark.parametrize(
    "how",
    [{"final_head_steps": 5}, {"personalize": {"steps": 3, "lr": 0.1, "what": "head"}}],
    ids=["final steps", "tuned"],
)
def test_resuming_a_finished_run_keeps_the_tuned_heads_of_all(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    """210 clients, of which four participate: the rows of the others changed at the end only."""
    options = {"rounds": 2, "participation": 0.02, "folder": tmp_path / "run", **how}
    wanted = heads(train(210, **options))
    for run in (train(210, resume=True, **options), fgn.load(tmp_path / "run")):
        found = heads(run)
        assert all(torch.equal(found[name], head) for name, head in wanted.items())


class Interrupt(fgn.Callback):
    def on_start(self, state: Any) -> None:  # noqa: ARG002
        raise KeyboardInterrupt


def test_a_run_that_starts_from_another_resumes_without_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 4, "participation": [["c0", "c1"]]}
    before = train(4, rounds=5)
    wanted = heads(train(4, start=before, **options))
    options["folder"] = tmp_path / "run"
    with pytest.raises(fgn.Interrupted):
        train(4, start=before, callbacks=[Interrupt()], **options)
    found = heads(train(4, resume=True, **options))
    assert all(torch.equal(found[name], head) for name, head in wanted.items())


def test_of_many_clients_only_those_that_took_part_have_changed_after_a_restart(
    tmp_path: Path,
) -> None:
    """Each keeps its own best round, so the checkpoint has a network for every one of them."""

    def start(**how: Any) -> fgn.Run:
        network = toys.seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double())
        given = [fgn.Client(c.name, c.task, c.train, validation=c.train) for c in clients(210)]
        options = {"batch_size": None, "lr": 0.05, "eval_every": 1, "device": "cpu", "rounds": 4}
        options |= {"participation": 0.02, "keep": "own_best", "checkpoint_every": 1}
        return flat.train(network, given, **options, **how)

    whole = start()
    toys.interrupted(start, at=2, folder=tmp_path / "run")
    resumed = start(folder=tmp_path / "run", resume=True)
    assert resumed.table.text() == whole.table.text()
    assert all(torch.equal(head, heads(resumed)[name]) for name, head in heads(whole).items())


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"shared": "!*bias"},
        {"ditto": 0.5},
        {"keep": "own_best", "eval_every": 1},
        {"personalize": {"steps": 2, "lr": 0.1, "what": "network"}},
        {"statistics": True},
        {"head": True},
    ],
    ids=str,
)
def test_a_run_of_many_clients_is_loaded_whatever_they_have(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    more = dict(how)
    norm = nn.BatchNorm1d(3) if more.pop("statistics", False) else nn.Tanh()
    head = nn.Sequential(nn.Linear(3, 1), nn.Tanh()) if more.pop("head", False) else None
    network = toys.seeded(lambda: nn.Sequential(nn.Linear(4, 3), norm).double())
    given = [
        fgn.Client(c.name, c.task, c.train, validation=c.train, head=head) for c in clients(210)
    ]
    options = {"lr": 0.05, "eval_every": 0, "device": "cpu", "rounds": 2, "participation": 0.02}
    run = flat.train(network, given, folder=tmp_path / "run", **{**options, **more})
    loaded, x = fgn.load(tmp_path / "run"), torch.randn(3, 4, dtype=torch.float64)
    for name in ("c0", *run.history.client[run.history.split == "batch"]):
        assert (loaded.predict(name, x) == run.predict(name, x)).all()
