"""Ranks as real processes: the same run as one process, killed, resumed, stopped, refused."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedgradnorm as fgn
import toys
from engines.distributed_killed import train, train_many
from engines.distributed_training import CASES, results
from experiments.small_config import small_config
from fedgradnorm._cli import app
from fedgradnorm._engines import RankedEngine
from fedgradnorm._engines.ranks import World
from fedgradnorm._federation import federation as federations
from fedgradnorm._training.inputs import meet
from fedgradnorm.weighting._products import MGDA

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TIGHT, LOOSE = 1e-10, 1e-5
# A bias before a batch-norm has no gradient but rounding, about 1e-17, another one for every order
# of a sum. Adam divides it by itself and 1e-8, so it moves by 1e-9 where all else agrees to 1e-16.
WITHIN = {"float32": LOOSE, "idle bias": 1e-8}
ROUNDS = 80


def torchrun(ranks: int, *words: Any, **environment: str) -> subprocess.Popen[str]:
    """Start ranks that meet on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    ours = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1"}
    return subprocess.Popen(
        [*command, *place, *map(str, words)],
        env={**os.environ, "PYTHONPATH": paths, **ours, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str], code: int | None = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert code is None or process.returncode == code, out + err
    return out, err


def gap(left: Any, right: Any) -> float:
    """The largest relative difference between two nested values of the same shape."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        return max((gap(left[key], right[key]) for key in left), default=0.0)
    if isinstance(left, list) and left and isinstance(left[0], float):
        a, b = np.array(left), np.array(right)
        return float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))
    if isinstance(left, list):
        assert len(left) == len(right)
        return max((gap(a, b) for a, b in zip(left, right, strict=True)), default=0.0)
    if isinstance(left, float):
        return abs(left - right) / max(1.0, abs(right)) if math.isfinite(left) else math.inf
    assert left == right
    return 0.0


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Every case in this process, as JSON would give it back."""
    found: dict[str, Any] = json.loads(json.dumps(results("auto", list(CASES))))
    return found


@pytest.fixture
def ranked(alone, monkeypatch):  # what it is compared with comes first
    """One process that takes itself for a rank."""
    monkeypatch.setattr(federations, "asked_for", lambda: 2)


@pytest.mark.slow
def test_ranks_give_the_same_run_as_one_process(alone, tmp_path):
    finished(torchrun(3, HERE / "distributed_training.py", tmp_path))
    found = json.loads((tmp_path / "found.json").read_text())
    for name, reference in alone.items():
        assert gap(found[name], reference) < WITHIN.get(name, TIGHT), name
    left = [path.read_text().split() for path in tmp_path.glob("threads-*.txt")]
    assert len(left) == 3  # and no thread is left to abort a rank that ends
    assert not [name for names in left for name in names if "gloo" in name]


@pytest.mark.slow
def test_more_ranks_than_clients(alone, tmp_path):
    names = ["joint", "gram", "averaged heads", "heads by task", "heads by task, own bias"]
    finished(torchrun(5, HERE / "distributed_training.py", tmp_path, *names))
    found = json.loads((tmp_path / "found.json").read_text())
    assert gap(found, {name: alone[name] for name in names}) < TIGHT


@pytest.mark.parametrize(
    "name",
    [
        "joint",
        "vmap",
        "statistics",
        "gram",
        "averaged heads",
        "heads by task",
        "heads by task, own bias",
        "private clients",
        "some evaluated",
        "registered",
        "registered, one unlike",
        "streamed",
    ],
)
@pytest.mark.usefixtures("ranked")
def test_one_rank_without_torchrun(name, alone):
    found = json.loads(json.dumps(results("auto", [name])))
    assert gap(found[name], alone[name]) < TIGHT


@pytest.mark.slow
def test_the_command_line_under_torchrun_then_resumed_by_another_number(tmp_path):
    config = small_config(tmp_path)
    folder = tmp_path / "runs" / "small-fedgradnorm-seed0"
    first = torchrun(2, "-m", "fedgradnorm", "run", config, "rounds=6")
    out, _ = finished(first)
    assert out.count("run folder:") == 1
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [folder.name]
    whole = fgn.load(folder)
    fgn_alone = tmp_path / "alone"
    done = CliRunner().invoke(app, ["run", str(config), f"output.folder={fgn_alone}"])
    assert done.exit_code == 0, done.output
    single = fgn.load(fgn_alone / folder.name)
    assert gap(whole.table.rows, single.table.rows) < LOOSE
    assert whole.manifest["clients"] == single.manifest["clients"]
    assert torch.allclose(toys.parameters(whole.network), toys.parameters(single.network))


def kill_a_rank(folder: Path, rounds: int) -> tuple[str, str]:
    """Train with two ranks and kill -9 the second one when there are some checkpoints."""
    script = HERE / "distributed_killed.py"
    process = torchrun(2, script, folder, rounds, FEDGRADNORM_RANK_TIMEOUT="20")
    while not (folder / "many" / "rows" / "000003.safetensors").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(int((folder / "pid1").read_text()), signal.SIGKILL)
    return finished(process, None)


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_any_number_of_ranks_resumes(tmp_path):
    out, err = kill_a_rank(tmp_path, ROUNDS)
    assert "RankLost" in out + err
    assert "the last checkpoint is intact" in out + err
    for name, make in {"few": train, "many": train_many}.items():
        assert not json.loads((tmp_path / name / "run.json").read_text())["finished"]
        make(tmp_path / f"{name} undisturbed", ROUNDS)
    finished(torchrun(3, HERE / "distributed_killed.py", tmp_path, ROUNDS))
    for name in ("few", "many"):
        resumed, undisturbed = (fgn.load(tmp_path / f"{name}{end}") for end in ("", " undisturbed"))
        assert resumed.finished
        assert gap(resumed.table.rows, undisturbed.table.rows) < TIGHT
        for client in list(undisturbed.clients)[::20]:
            heads = (toys.parameters(run.heads[client]) for run in (resumed, undisturbed))
            torch.testing.assert_close(*heads, rtol=0, atol=TIGHT)
    assert gap(resumed.spread.to_dict("list"), undisturbed.spread.to_dict("list")) < TIGHT
    assert not (tmp_path / "many" / "rows").exists()


@pytest.mark.usefixtures("ranked")
@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize(("share", "many"), [(0.1, True), (1.0, False)])
def test_ranks_write_the_rows_that_changed_where_few_of_many_take_part(unlike, share, many):
    clients = [toys.client(f"side{i}", 9, "side") for i in range(200)]
    clients[1] = replace(clients[1], head=torch.nn.Linear(5, 2) if unlike else None)
    made = toys.federation(toys.network(), clients, executor="auto", participation=share)
    assert isinstance(made.engine, RankedEngine)
    assert (made.engine.journal is not None) == many
    made.round(0, ["side0", "side1", "side7"])
    assert made.engine.local.table.known() == ["side0", "side1", "side7"]
    if (journal := made.engine.journal) is None:
        return
    journal.settle()
    made.round(1, ["side2", "side7"])
    assert journal.count() == (2, 4)
    changed = journal.changed()
    assert [part["names"] for part in changed["parts"]] == [["side2", "side7"]]
    again = toys.federation(toys.network(), clients, executor="auto", participation=share)
    again.engine.journal.take(changed)
    assert toys.same(toys.row(again, "side7"), toys.row(made, "side7"))


def test_an_engine_of_one_process_is_refused_under_torchrun(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(fgn.ConfigError, match="executor 'loop' runs in one process"):
        meet("loop")


class Counting(World):
    """One rank that writes down how many numbers it would have sent."""

    sent: ClassVar[list[int]] = []

    def sum(self, tensor):
        self.sent.append(tensor.numel())
        return tensor

    def stack(self, tensor):
        self.sent.append(tensor.numel())
        return [tensor]


@pytest.mark.parametrize(
    ("weighting", "sent"),
    [(fgn.GradNorm(), [5 * 3, 101]), (fgn.Equal(), [5 * 3, 101]), (MGDA(), [5 * 3, 3 * 101, 101])],
)
@pytest.mark.usefixtures("ranked")
def test_only_what_the_weighting_needs_crosses_ranks(weighting, sent):
    federation = toys.federation(toys.network(), toys.clients(), weighting, executor="auto")
    assert isinstance(federation.engine, RankedEngine)
    federation.engine.world = Counting()
    Counting.sent.clear()
    federation.round(0, federation.names)
    assert Counting.sent == sent
