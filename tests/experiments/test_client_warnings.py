"""The log says when a client's trouble begins and ends; it does not repeat itself every round."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
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
from fedgradnorm._runs.about import read_about
from fedgradnorm._training.monitor import LONGEST, ClientWarnings, Monitor
from fedgradnorm.tasks._measures import squared_error

ROUNDS = 80
TROUBLES = st.lists(st.booleans(), min_size=1, max_size=300)


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if words in r.getMessage()]


def holding(names: list[str]) -> ClientWarnings:
    """Warnings of frozen weights."""
    return Monitor(names, Settings()).frozen


def noted(spells: ClientWarnings, troubles: list[bool], first: int = 1) -> list[str]:
    """The lines that a client's rounds leave in the log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("fedgradnorm")
    log.addHandler(handler)
    try:
        for k, trouble in enumerate(troubles):
            spells.note(first + k, [] if trouble else ["a"], {"a": ""} if trouble else {})
    finally:
        log.removeHandler(handler)
    return lines


@given(TROUBLES)
def test_lines_alternate_and_grow_with_the_logarithm_of_the_rounds(troubles: list[bool]) -> None:
    spells = holding(["a"])
    lines = noted(spells, troubles)
    assert all(("vanishing" in line) == (k % 2 == 0) for k, line in enumerate(lines))
    assert len(lines) <= 2 + math.log2(len(troubles))
    assert spells.totals == {"a": sum(troubles)}


def test_flapping_for_ever_is_bounded_by_the_longest_wait() -> None:
    troubles = np.random.default_rng(0).random(20_000) < 0.5
    assert len(noted(holding(["a"]), troubles.tolist())) <= 20_000 / LONGEST + 11


@pytest.mark.parametrize(("begin", "end"), [(1, 2), (3, 900), (100, 5000)])
def test_one_spell_is_two_lines_with_its_length(begin: int, end: int) -> None:
    troubles = [begin <= r < end for r in range(1, 6000)]
    assert noted(holding(["a"]), troubles) == [
        f"round {begin}: client 'a' has a vanishing gradient; its weight is held",
        f"round {end}: client 'a' has a gradient again; its weight moves; "
        f"held in {end - begin:,} of the last {end - begin:,} rounds",
    ]


ODD = [
    [False, {"x": 1}, 0, 0, 0],
    [False, -1, 0, 0, 0],
    [False, 0, 1.5, 0, 0],
    ["no", 0, 0, 0, 0],
    [False] * 5,
    [False, 1, 1, 1, 1, 1, 1],
    [],
    7,
]


@pytest.mark.parametrize("state", ODD, ids=repr)
def test_a_checkpoint_with_an_odd_count_is_refused_before_anything_is_trained(
    state: Any, tmp_path: Path
) -> None:
    path = begun(tmp_path / "run") / "checkpoint.safetensors"
    whole = checkpoint.load(path)
    whole["trainer"]["monitor"]["frozen"]["clients"]["side"] = state
    checkpoint.save(whole, path)
    with pytest.raises(fgn.RunFolderError, match="its checkpoint does not fit"):
        go(tmp_path / "run")


@pytest.mark.parametrize("rounds", [[1], [1, -2], [0.5, 1.0]])
def test_counts_that_do_not_fit_the_clients_are_refused(rounds: list[float]) -> None:
    with pytest.raises(ValueError, match="monitor"):
        holding(["a", "b"]).load_state_dict({"rounds": torch.tensor(rounds), "clients": {}})


def test_a_huge_count_of_lines_takes_no_time() -> None:
    spells = holding(["a"])
    spells.load_state_dict(
        {"rounds": torch.tensor([0]), "clients": {"a": [False, 10**30, 0, 0, 0]}}
    )
    assert noted(spells, [True] * LONGEST) == []
    assert len(noted(spells, [True])) == 1


@given(TROUBLES, st.integers(0, 300))
def test_a_restart_changes_no_line(troubles: list[bool], cut: int) -> None:
    first, second = holding(["a"]), holding(["a"])
    lines = noted(first, troubles[:cut])
    second.load_state_dict(first.state_dict())
    assert lines + noted(second, troubles[cut:], cut + 1) == noted(holding(["a"]), troubles)


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
    held = int(history.held.sum())
    assert held > ROUNDS / 4
    assert run.about["held"] == {"corner": 0, "flap": held}
    lines = [*said(caplog, "vanishing"), *said(caplog, "has a gradient again")]
    assert 2 <= len(lines) <= 2 + math.log2(ROUNDS)
    assert any("of the last" in line for line in lines)
    assert said(caplog, f"client 'flap' was held in {held} of its {ROUNDS} rounds")


def test_what_was_said_goes_through_a_checkpoint(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event.round == 37:
            raise KeyboardInterrupt

    whole = train_flapping(tmp_path / "whole")
    with pytest.raises(fgn.Interrupted):
        train_flapping(tmp_path / "run", progress=stop)
    run = train_flapping(tmp_path / "run", resume=True)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")
    assert run.about["held"] == whole.about["held"] == read_about(tmp_path / "run")["held"]
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
    assert len(said(caplog, "'bad' left out")) == 1
    assert said(caplog, "client 'bad' was left out in 40 of its 40 rounds")
    assert run.about["left_out"] == {"corner": 0, "bad": 40}
    warned = said(caplog, "cannot train")
    assert len(warned) == 1
    assert "client 'bad' cannot train" in warned[0]
    assert "lower lr (now 0.0002)" in warned[0]
