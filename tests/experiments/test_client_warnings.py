"""The log says when a client's problem begins, and sums it up; it does not repeat itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from experiments.killed_training import go
from experiments.resuming import assert_equal_to_the_bit, begun
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.manifest import identity, read_manifest
from fedgradnorm._training.monitor import ClientWarnings, Monitor
from fedgradnorm.tasks._measures import squared_error

ROUNDS = 80
PROBLEMS = st.lists(st.booleans(), min_size=1, max_size=300)


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if words in r.getMessage()]


def holding(names: list[str]) -> ClientWarnings:
    """Warnings of frozen weights."""
    return Monitor(names, Settings()).frozen


def noted(warnings: ClientWarnings, problems: list[bool], first: int = 1) -> list[str]:
    """The lines that a client's rounds leave in the log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("fedgradnorm")
    log.addHandler(handler)
    try:
        for k, problem in enumerate(problems):
            warnings.note(first + k, {"a": ""} if problem else {})
    finally:
        log.removeHandler(handler)
    return lines


@given(PROBLEMS)
def test_trouble_is_one_line_when_it_begins_and_a_count(problems: list[bool]) -> None:
    warnings = holding(["a", "b"])
    lines = noted(warnings, problems)
    assert warnings.times == {"a": sum(problems), "b": 0}
    vanishing = "client 'a' has a vanishing gradient; its weight is frozen"
    first = [f"round {problems.index(True) + 1}: {vanishing}"] if any(problems) else []
    assert lines == first


@pytest.mark.parametrize("times", [[1.5, 0.0, 0.0], [-1, 0, 0], [1, 2], [], [[0, 1, 2]]], ids=repr)
@pytest.mark.parametrize("kind", ["failing", "frozen", "growing"])
def test_a_checkpoint_with_an_odd_count_is_refused_before_anything_is_trained(
    times: Any, kind: str, tmp_path: Path
) -> None:
    path = begun(tmp_path / "run") / "checkpoint.safetensors"
    whole = checkpoint.load(path)
    assert whole["trainer"]["monitor"][kind]["times"].tolist() == [0, 0, 0]
    whole["trainer"]["monitor"][kind]["times"] = torch.tensor(times)
    checkpoint.save(whole, path, identity(read_manifest(path.parent)))
    with pytest.raises(fgn.RunFolderError, match="its checkpoint does not fit"):
        go(tmp_path / "run")


@given(PROBLEMS, st.integers(0, 300))
def test_a_restart_changes_no_line(problems: list[bool], cut: int) -> None:
    first, second = holding(["a"]), holding(["a"])
    lines = noted(first, problems[:cut])
    second.load_state_dict(first.state_dict())
    assert lines + noted(second, problems[cut:], cut + 1) == noted(holding(["a"]), problems)


def flapping() -> tuple[nn.Module, list[fgn.Client]]:
    """Every second row of a client is 0, which has no gradient where there is no bias."""
    x, y = toys.rows("side", 24)
    x[::2] = 0
    network = toys.seeded(lambda: nn.Linear(toys.FEATURES, 4, bias=False))
    return network, [toys.client("corner"), fgn.Client("flap", toys.task("side"), train=(x, y))]


def train_flapping(folder: Path | None = None, **more: Any) -> fgn.Run:
    more = {"rounds": ROUNDS, "batch_size": 1, "eval_every": 0, "folder": folder, **more}
    return flat.train(*flapping(), **more)


def test_a_client_that_flaps_is_counted_in_full_and_told_in_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = train_flapping()
    history = run.history[run.history.client == "flap"]
    frozen = int(history.weight_frozen.sum())
    assert frozen > ROUNDS / 4
    assert run.manifest["weight_frozen"] == {"corner": 0, "flap": frozen}
    assert len(said(caplog, "vanishing")) == 1
    assert said(caplog, f"client 'flap' was frozen in {frozen} of {ROUNDS} rounds")


def test_what_was_said_goes_through_a_checkpoint(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event.round == 37:
            raise KeyboardInterrupt

    whole = train_flapping(tmp_path / "whole")
    with pytest.raises(fgn.Interrupted):
        train_flapping(tmp_path / "run", progress=stop)
    run = train_flapping(tmp_path / "run", resume=True)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")
    assert (
        run.manifest["weight_frozen"]
        == whole.manifest["weight_frozen"]
        == read_manifest(tmp_path / "run")["weight_frozen"]
    )
    logs = [(tmp_path / name / "log.txt").read_text() for name in ("whole", "run")]
    told = [[line.split(" ", 3)[3] for line in log.splitlines() if "WARN" in line] for log in logs]
    assert told[0] == told[1]


def not_a_number(output: Tensor, target: Tensor) -> Tensor:
    return squared_error(output, target) * torch.nan


def test_a_client_that_always_fails_is_told_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = fgn.regression(2, loss=not_a_number)
    bad = fgn.Client("bad", task, train=toys.rows("place", 24))
    run = flat.train(toys.network(), [toys.client("corner"), bad], rounds=40, eval_every=0)
    (line,) = said(caplog, "'bad' left out")
    assert "lower lr (now 0.001) or look at its data" in line
    assert said(caplog, "client 'bad' was left out in 40 of 40 rounds")
    assert run.manifest["left_out"] == {"corner": 0, "bad": 40}
