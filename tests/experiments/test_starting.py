"""Going on from a finished run: what is taken over, what begins anew, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedgradnorm as fgn
import flat
import toys
from experiments.resuming import assert_equal_to_the_bit
from experiments.small_config import small_config
from fedgradnorm._cli import app
from fedgradnorm._federation.heads import first_head
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import CHECKPOINT, CONFIG
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm._runs.reader import read_run
from fedgradnorm._runs.starting import fingerprint as run_fingerprint
from fedgradnorm._training.trainer import Trainer
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments import run as execute
from fedgradnorm.experiments._groups import group

HOW = {"rounds": 3, "batch_size": 8, "lr": 0.05, "device": "cpu", "weighting": fgn.Equal()}


def train(clients: list[fgn.Client] | None = None, network: nn.Module | None = None, **more: Any):
    network = toys.noisy_network() if network is None else network
    return flat.train(network, clients or toys.clients(), **{**HOW, **more})


def evaluations(run: fgn.Run, round_number: int) -> dict[tuple[str, str], float]:
    return {
        (row["client"], row["split"]): row["loss"]
        for row in run.table.rows
        if row["round"] == round_number and row["split"] in ("train", "validation", "test")
    }


def twins(size: int = 2) -> list[fgn.Client]:
    """Clients of one task, which can have one head."""
    task, names = fgn.classification(2, name="t"), ["b", "c", "a"][:size]
    return [fgn.Client(n, task, toys.rows("side", 30 + i)) for i, n in enumerate(names)]


WAYS: list[dict[str, Any]] = [
    {"executor": "loop"},
    {"executor": "joint", "network": toys.network()},
    {"executor": "vmap", "network": toys.network()},
    {"share": "none"},
    {"share": "none", "network": toys.network()},
    {"ditto": 0.1},
    {"ditto": 0.1, "network": toys.network()},
    {"heads": "task", "clients": twins()},
    {"heads": "task", "head_own": "bias", "clients": twins()},
    {"personalize": {"steps": 2, "what": "network"}, "share": "none"},
]


@pytest.mark.parametrize("how", WAYS, ids=" ".join)
def test_a_run_begins_where_the_other_one_ended(how: dict, tmp_path: Path) -> None:
    """To the digit, in every engine: network, heads, statistics and custom networks."""
    run = train(**how)
    loaded = fgn.load(run.save(tmp_path / "run"))
    again = train(**how, start=loaded)
    before, after = evaluations(run, 3), evaluations(again, 0)
    assert before.keys() == after.keys()
    for key, loss in before.items():
        assert after[key] == pytest.approx(loss, rel=1e-6 if "network" not in how else 1e-12), key
    assert evaluations(again, 3) != before
    assert sorted(again.manifest["start"]["heads"]) == sorted(run.clients)


def test_weights_and_optimisers_begin_anew() -> None:
    """The first step is the one that a network with these values makes by itself."""
    run = train(network=toys.network(), weighting=fgn.GradNorm(lr=0.05), rounds=6)
    again = train(network=toys.network(), weighting=fgn.GradNorm(lr=0.05), start=run)
    fresh = [
        fgn.Client(c.name, c.task, c.train, test=c.test, head=run.heads[c.name])
        for c in toys.clients()
    ]
    by_hand = train(fresh, network=run.network, weighting=fgn.GradNorm(lr=0.05))
    assert again.table.text() == by_hand.table.text()
    assert torch.equal(toys.parameters(again.network), toys.parameters(by_hand.network))
    assert "start" not in by_hand.manifest


def test_the_run_and_the_network_given_are_left_as_they_were() -> None:
    run, network = train(), toys.noisy_network()
    before = [{k: t.clone() for k, t in m.state_dict().items()} for m in (run.network, network)]
    train(network=network, start=run)
    assert toys.same(before, [dict(m.state_dict()) for m in (run.network, network)])


def test_new_clients_and_other_tasks_get_fresh_heads(caplog: pytest.LogCaptureFixture) -> None:
    corner, side, place = toys.clients()
    run = train([corner, side])
    other = toys.client("corner", kind="place")  # the name is known, but not for this task
    caplog.set_level("INFO", "fedgradnorm")
    again = train([other, side, place], start=run, lr=1e-30)
    assert again.manifest["start"]["heads"] == ["side"]
    assert "its heads for side; new heads for corner, place" in caplog.text
    for client in (other, place):
        fresh = first_head(run.network, client, Settings())
        assert torch.allclose(toys.parameters(again.heads[client.name]), toys.parameters(fresh))
    assert torch.allclose(toys.parameters(again.heads["side"]), toys.parameters(run.heads["side"]))


def test_a_head_in_common_goes_on_for_a_client_that_joins() -> None:
    run = train(twins(2), heads="task")
    again = train(twins(3), heads="task", start=run, lr=1e-30)
    for name in "abc":
        one, other = again.heads[name], run.heads["b"]
        assert torch.allclose(toys.parameters(one), toys.parameters(other))


@pytest.mark.parametrize("stop", [0, 2])
@pytest.mark.parametrize("how", [{}, {"share": "none"}, {"ditto": 0.1}], ids=str)
def test_a_resumed_run_needs_no_start(tmp_path: Path, how: dict, stop: int) -> None:
    """And is bit-for-bit the one that was never stopped, from its very first checkpoint on."""
    run = train(**how)
    how = {**how, "checkpoint_every": 1, "rounds": 4}
    train(**how, start=run, folder=tmp_path / "whole")

    def interrupt(event: Any) -> None:
        if event.round == stop:
            raise KeyboardInterrupt

    broken = tmp_path / "broken"
    if stop:
        with pytest.raises(fgn.Interrupted):
            train(**how, start=run, folder=broken, progress=interrupt)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "train", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                train(**how, start=run, folder=broken)
    train(**how, folder=broken, resume=True)
    assert_equal_to_the_bit(broken, tmp_path / "whole")
    assert read_manifest(broken)["start"] == read_manifest(tmp_path / "whole")["start"]


def test_another_start_is_refused_when_resuming(tmp_path: Path) -> None:
    run, other = train(), train(seed=1)
    train(start=run, folder=tmp_path / "run")
    assert train(start=run, folder=tmp_path / "run", resume=True).finished
    with pytest.raises(fgn.RunFolderError, match=r"another start.*leave start out"):
        train(start=other, folder=tmp_path / "run", resume=True)
    train(folder=tmp_path / "plain")
    with pytest.raises(fgn.RunFolderError, match="the run began without another run"):
        train(start=run, folder=tmp_path / "plain", resume=True)


def test_a_run_without_its_first_checkpoint_asks_for_the_start(tmp_path: Path) -> None:
    run = train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "announce", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(start=run, folder=tmp_path / "run")
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    with pytest.raises(fgn.RunFolderError, match="needs the run that it started from"):
        train(folder=tmp_path / "run", resume=True)
    whole = train(start=run, folder=tmp_path / "whole")
    assert train(start=run, folder=tmp_path / "run", resume=True).weights == whole.weights
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")


def test_a_command_killed_as_it_begins_is_not_resumed_without_its_start(tmp_path: Path) -> None:
    """A config alone would be resumed as a run that starts at random."""
    config = load_config(small_config(tmp_path))
    execute(config, tmp_path / "first")

    class Killed(BaseException):
        pass

    def write(path: Path, data: bytes) -> None:
        if path.name == CONFIG:
            raise Killed
        write_atomically(path, data)

    with pytest.MonkeyPatch.context() as patch:
        write_atomically = checkpoint.write_atomically
        patch.setattr(checkpoint, "write_atomically", write)
        with pytest.raises(Killed):
            execute(config, tmp_path / "second", start=tmp_path / "first")
    assert read_manifest(tmp_path / "second")["start"]
    result = CliRunner().invoke(app, ["resume", str(tmp_path / "second")])
    assert result.exit_code == 2
    assert not (tmp_path / "second" / CHECKPOINT).exists()


def frozen(value: float) -> nn.Module:
    network = toys.network(torch.float32)
    with torch.no_grad():
        network[0].weight.fill_(value)
    network[0].requires_grad_(False)
    return network


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    run = train(network=toys.network())
    small = nn.Sequential(nn.Linear(toys.FEATURES, 4), nn.Tanh(), nn.Linear(4, 5))
    message = r"'0.weight' of shape \(8, 6\), the network given \(4, 6\)"
    with pytest.raises(fgn.ModelError, match=message):
        train(network=small, start=run)
    with pytest.raises(fgn.ModelError, match=r"'4.weight' of shape None"):
        train(network=nn.Sequential(*toys.network(), nn.Linear(5, 5)), start=run)
    alone = train(network=toys.network(), share="none")
    with pytest.raises(fgn.ConfigError, match="nothing was shared in that run"):
        train(network=toys.network(), start=alone)
    with pytest.raises(fgn.ModelError, match=r"the network of client 'corner'.*shape"):
        train(network=small, start=alone, share="none")
    with pytest.raises(fgn.ConfigError, match=r"start must be a run.*fgn.load"):
        train(start="folder", folder=tmp_path / "none")
    still = train(network=frozen(0.1))
    assert train(network=frozen(0.1), start=still).finished
    with pytest.raises(fgn.ModelError, match=r"'0\.weight' of the network given is frozen"):
        train(network=frozen(0.2), start=still)
    assert not list(tmp_path.iterdir())


def test_runs_with_another_start_are_another_arm(tmp_path: Path) -> None:
    run = train(folder=tmp_path / "plain")
    train(start=run, folder=tmp_path / "started")
    train(start=run, seed=1, folder=tmp_path / "seed")
    runs = [read_run(tmp_path / name) for name in ("plain", "started", "seed")]
    one, other = group(runs)[0]
    assert (len(one.whole), len(other.whole)) == (1, 2)
    assert run_fingerprint(run) in other.label


def test_the_command(tmp_path: Path) -> None:
    config = small_config(tmp_path)

    def cli(*words: object) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words])

    assert cli("run", config).exit_code == 0
    first, second = (tmp_path / "runs" / f"small-fedgradnorm-seed0{end}" for end in ("", "-2"))
    result = cli("run", config, "rounds=4", "--from", first)
    assert result.exit_code == 0, result.output
    assert read_manifest(second)["start"]["heads"] == ["class", "value"]
    one, two = (fgn.load(folder) for folder in (first, second))
    assert evaluations(two, 0) == pytest.approx(evaluations(one, 6), rel=1e-6)
    assert cli("resume", second).exit_code == 0
    before = sorted(tmp_path.rglob("*"))
    result = cli("run", config, "network.widths=[4]", "--from", first)
    assert result.exit_code == 2
    assert "of shape (6, 3), the network given (4, 3)" in result.stderr
    result = cli("run", config, "--from", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert sorted(tmp_path.rglob("*")) == before
