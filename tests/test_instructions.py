"""A CPU whose bfloat16 products kill a process: the process lives, and goes on or says why not."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fedgradnorm as fgn
import toys
from experiments.small_config import small_config
from fedgradnorm import _instructions as instructions
from fedgradnorm._cli import app
from fedgradnorm._instructions import LIMIT, OLDER, obstacle, require_bf16
from fedgradnorm.experiments._compare import compare
from fedgradnorm.experiments._config.config_file import load_config

CPU = torch.device("cpu")
REFUSED = 'would kill this process.*start again with ONEDNN_MAX_CPU_ISA=AVX512.*precision = "float'
Products = Callable[[Callable[[], None]], None]


def die() -> None:
    os.kill(os.getpid(), signal.SIGILL)


def die_unless_limited_to(*limits: str) -> Callable[[], None]:
    """As on a CPU that advertises too much, in a process that has not used oneDNN yet."""
    return lambda: None if os.environ.get(LIMIT) in limits else die()


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch):
    """Put other products in the place of the real ones; nothing is known about them yet."""
    monkeypatch.setenv(LIMIT, "DEFAULT")  # what a fallback sets here ends with the test

    def put(fake: Callable[[], None]) -> None:
        monkeypatch.setattr(instructions, "products", fake)

    obstacle.cache_clear()
    yield put
    obstacle.cache_clear()


@pytest.fixture
def deadly(products: Products, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that only a new process with the variable set can use."""
    products(die)
    monkeypatch.setattr(instructions, "_fresh_process_survives", lambda limit=None: bool(limit))


def train(**settings: object) -> fgn.Run:
    how = {"rounds": 2, "batch_size": 8, "device": "cpu", "precision": "bf16", **settings}
    return fgn.train(toys.network(torch.float32), toys.clients(), **how)  # type: ignore[arg-type]


def test_the_real_products_are_tried_once_and_change_nothing_here(products: Products) -> None:
    before = torch.get_rng_state(), torch.get_num_threads(), os.environ.get(LIMIT)
    assert obstacle() == "" or "tried in a child process" in obstacle()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]
    assert os.environ.get(LIMIT) in (before[2], *OLDER)
    products(die)
    began = time.perf_counter()
    obstacle()
    assert time.perf_counter() - began < 0.01


@pytest.mark.usefixtures("deadly")
@pytest.mark.parametrize("engine", ["auto", "loop", "joint", "stacked"])
def test_a_run_that_would_be_killed_is_refused(engine: str, tmp_path: Path) -> None:
    with pytest.raises(fgn.ConfigError, match=REFUSED):
        train(engine=engine, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(engine=engine, precision="float32")


@pytest.mark.usefixtures("deadly")
def test_the_network_that_any_engine_trains_is_refused() -> None:
    with pytest.raises(fgn.ConfigError, match=REFUSED):
        toys.federation(toys.network(torch.float32), toys.clients(), precision="bf16")


@pytest.mark.usefixtures("deadly")
def test_a_client_of_a_deployment_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from fedgradnorm._flower.agreement import Agreement
    from fedgradnorm._flower.participant import Participant
    from fedgradnorm._round.settings import Settings

    agreement = Agreement(Settings(precision="bf16", rounds=1, device="cpu"), 1, (), "")
    with pytest.raises(fgn.ConfigError, match=REFUSED):
        Participant(toys.network(torch.float32), toys.client(), agreement, tmp_path)


@pytest.mark.usefixtures("deadly")
def test_a_command_says_so_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["run", str(small_config(tmp_path)), "training.precision=bf16", "training.device=cpu"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("deadly")
def test_a_comparison_asks_before_its_first_run(tmp_path: Path) -> None:
    words = ['sweep.training.precision=["float32","bf16"]', "training.device=cpu"]
    with pytest.raises(fgn.ConfigError, match=REFUSED):
        compare(load_config(small_config(tmp_path), words), ["fedrep"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("bf16")
@pytest.mark.parametrize("works", OLDER)
def test_older_instructions_are_used_where_they_still_can_be(
    works: str, products: Products, caplog: pytest.LogCaptureFixture
) -> None:
    products(die_unless_limited_to(works))
    with caplog.at_level("WARNING", "fedgradnorm"):
        assert len(train().heads) == 3
        train()
    assert os.environ[LIMIT] == works
    assert [f"now {LIMIT}={works}" in line for line in caplog.messages] == [True]


def test_a_remedy_is_named_only_if_it_works(products: Products, monkeypatch) -> None:
    products(die)
    monkeypatch.setattr(instructions, "_fresh_process_survives", lambda *_: False)
    assert LIMIT not in obstacle()
    assert obstacle().endswith('set precision = "float32"')


def test_a_new_process_takes_the_real_products(products: Products) -> None:
    products(die)  # here alone
    assert instructions._fresh_process_survives(OLDER[0])


@pytest.mark.parametrize("number", instructions.DEADLY)
def test_every_signal_of_the_cpu_counts(number: int, products: Products) -> None:
    products(lambda: os.kill(os.getpid(), number))
    assert instructions._fork_survives() is False


def test_an_exception_does_not_count(products: Products) -> None:
    products(lambda: 1 // 0)  # type: ignore[arg-type]
    assert instructions._fork_survives() is True


@pytest.mark.parametrize("answer", [True, False])
def test_a_fork_that_hangs_is_ended_and_a_new_process_is_asked(
    answer: bool, products: Products, monkeypatch, tmp_path: Path
) -> None:
    def hang() -> None:
        (tmp_path / "child").write_text(str(os.getpid()))
        threading.Event().wait()

    products(hang)
    monkeypatch.setattr(instructions, "PATIENCE", 0.2)
    monkeypatch.setattr(instructions, "_fresh_process_survives", lambda *_: answer)
    assert (obstacle() == "") == answer
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)


def test_signals_reach_this_process_afterwards_and_never_the_fork(products: Products) -> None:
    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        die()

    products(interrupted)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert instructions._fork_survives() is False
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_threads_that_work_already_do_not_hinder_a_fork() -> None:
    code = (
        "import torch\n"
        "from fedgradnorm import _instructions as instructions\n"
        "torch.set_num_threads(4)\n"
        "x = torch.ones(600, 600, requires_grad=True)\n"
        "for _ in range(3): (x @ x).exp().sum().backward()\n"
        "assert all(instructions._fork_survives() is not None for _ in range(5))\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


FIRST_USE = f"""
import os, torch

def use():
    torch.nn.Conv2d(16, 32, 3)(torch.ones(8, 16, 32, 32))

def limit():
    os.environ["{LIMIT}"] = "SSE41"

for steps in ((limit, use), (use, limit, use)):
    if os.fork() == 0:
        for step in steps:
            step()
        os._exit(0)
    os.wait()
    print("that was one process", flush=True)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs have other instructions")
def test_onednn_reads_the_variable_at_its_first_use_and_never_again() -> None:
    variables = {k: v for k, v in os.environ.items() if k != LIMIT}
    variables |= {"ONEDNN_VERBOSE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FIRST_USE]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    early, late, _ = done.stdout.split("that was one process")
    assert "isa:Intel SSE4.1" in early
    assert "isa:Intel" in late
    assert "isa:Intel SSE4.1" not in late


def test_a_gpu_is_not_asked(products: Products) -> None:
    products(die)
    require_bf16(torch.device("cuda"))
    assert obstacle.cache_info().currsize == 0
