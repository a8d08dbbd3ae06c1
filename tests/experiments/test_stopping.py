"""Stopping in time: the state that is kept, when a run ends early, and what it says of that."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedgradnorm as fgn
import flat
import toys
from experiments.overfitting import (
    ENDS,
    EVERY,
    ROUNDS,
    assert_same_networks,
    clients,
    ending,
    gains,
    losses,
    train,
)
from experiments.resuming import assert_equal_to_the_bit
from fedgradnorm._report.grid import to_csv
from fedgradnorm._report.page import runs_grid
from fedgradnorm._runs.reader import read_run
from fedgradnorm._training.display import live_display
from fedgradnorm.experiments._groups import group

WAYS: list[dict[str, Any]] = [
    {},
    {"executor": "joint"},
    {"executor": "vmap", "shared_steps": 2},
    {"ditto": 0.1},
    {"participation": 0.7, "network": toys.noisy_network},
    {"final_head_steps": 3},
]


@pytest.mark.parametrize("how", WAYS, ids=" ".join)
def test_what_is_kept_is_what_a_run_of_so_many_rounds_ends_with(how: dict) -> None:
    plain, run = train(**how), train(keep="best", **how)
    kept = run.manifest["kept"]
    seen = gains(plain)
    if "final_head_steps" in how:  # the last evaluation is after the heads were tuned
        seen.pop(ROUNDS)
    assert 0 < kept["round"] < ROUNDS
    assert kept["round"] == max(seen, key=seen.__getitem__)
    assert kept["gain"] == pytest.approx(seen[kept["round"]], rel=1e-12)
    short = train(**{**how, "rounds": kept["round"]})
    if "final_head_steps" not in how:  # whose batches go on from the last round
        assert_same_networks(run, short)
        for split in ("train", "validation", "test"):
            assert losses(run, split=split) == losses(short, split=split)
            assert losses(run, 3, split) == losses(plain, 3, split)
    assert run.manifest["stopped_early"] is False
    assert kept["last_round"] == ROUNDS == run.history["round"].max()


def test_every_evaluation_is_in_the_history_once_and_tables_show_what_is_kept() -> None:
    run = train(keep="best")
    rows = run.history[run.history.split != "batch"]
    assert not rows.duplicated(["round", "client", "split"]).any()
    x, y = clients()[0].validation
    task, output = clients()[0].task, run.predict("corner", x, outputs=True)
    assert losses(run)["corner"] == pytest.approx(task.measure(output, y)["loss"])
    assert run.summary().loc["corner"].last_loss == losses(run, split="train")["corner"]


def test_patience_ends_a_run_and_every_engine_ends_it_alike() -> None:
    whole = train(keep="best")
    runs = [train(keep="best", patience=2, executor=e) for e in ("loop", "joint", "vmap")]
    for run in runs:
        kept = run.manifest["kept"]
        assert run.finished
        assert run.manifest["stopped_early"] is True
        assert kept["last_round"] == kept["round"] + 2 * EVERY == run.history["round"].max()
        assert kept["round"] == runs[0].manifest["kept"]["round"]
    if whole.manifest["kept"]["round"] == kept["round"]:
        assert_same_networks(whole, runs[0])


def test_patience_that_is_never_lost_changes_nothing() -> None:
    left, right = train(keep="best"), train(keep="best", patience=ROUNDS)
    assert_same_networks(left, right)
    assert left.history.equals(right.history)


def test_alone_each_client_keeps_its_own_best_and_stops_by_itself() -> None:
    how = {"share": "none", "keep": "best", "patience": 2}
    run, plain = train(**how), train(share="none")
    kept = run.manifest["kept"]["clients"]
    assert len({one["last_round"] for one in kept.values()}) > 1
    assert run.history["round"].max() == max(one["last_round"] for one in kept.values())
    for name, one in kept.items():
        assert losses(run)[name] == losses(plain, one["round"])[name]
        batches = run.history[(run.history.client == name) & (run.history.split == "batch")]
        assert batches["round"].max() == one["last_round"]  # and cost nothing more


def test_alone_a_client_without_validation_rows_trains_to_the_end() -> None:
    how = {"share": "none", "keep": "best", "patience": 1}
    run, plain = train("side", **how), train("side", share="none")
    assert set(run.manifest["kept"]["clients"]) == {"corner", "place"}
    assert run.history["round"].max() == ROUNDS
    assert losses(run, split="test")["side"] == losses(plain, split="test")["side"]
    assert losses(run, split="test")["corner"] != losses(plain, split="test")["corner"]


def test_clients_without_validation_rows_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedgradnorm")
    run = train("side", keep="best")
    assert "not counted: side" in caplog.text
    seen = gains(train("side"))
    assert run.manifest["kept"]["round"] == max(seen, key=seen.__getitem__)


def test_no_validation_rows_at_all_are_refused_with_the_way_out() -> None:
    with pytest.raises(fgn.ConfigError, match=r"no client has any; give clients validation=\(x, y"):
        flat.train(toys.network(), toys.clients(), rounds=2, keep="best")


@pytest.mark.parametrize(
    "how", [{}, {"patience": 2}, {"patience": 2, "share": "none"}, {"ditto": 0.1}], ids=str
)
def test_it_resumes_to_the_bit_wherever_it_was_stopped(tmp_path: Path, how: dict) -> None:
    how = {"keep": "best", "network": toys.noisy_network, "participation": 0.7, **how}
    how = {**how, "checkpoint_every": 1, "rounds": 12}
    whole = train(folder=tmp_path / "whole", **how)
    last = int(whole.history["round"].max())
    for at, how_it_ends in zip((1, last - 1, last), itertools.cycle(ENDS), strict=False):
        folder = tmp_path / f"part{at}"
        with pytest.raises(how_it_ends):
            train(folder=folder, progress=ending(at, how_it_ends), **how)
        again = train(folder=folder, resume=True, **how)
        assert_equal_to_the_bit(folder, tmp_path / "whole")
        for key in ("kept", "stopped_early"):
            assert again.manifest[key] == whole.manifest[key] == fgn.load(folder).manifest[key]


def test_the_terminal_the_log_and_the_page_say_what_was_kept(tmp_path: Path) -> None:
    text = io.StringIO()
    with live_display(0, console=Console(file=text, width=400)) as show:
        run = train(keep="best", patience=2, progress=show, folder=tmp_path / "run")
    kept = run.manifest["kept"]
    words = f"stopped early at round {kept['last_round']}, kept round {kept['round']}"
    assert text.getvalue().splitlines()[-1].endswith(words)
    assert words in (tmp_path / "run" / "log.txt").read_text()
    page = to_csv(runs_grid([read_run(tmp_path / "run")]))
    assert f"finished, round {kept['last_round']} of {ROUNDS}, {words}" in page


def test_seeds_that_stopped_at_different_rounds_are_one_arm(tmp_path: Path) -> None:
    for seed in range(4):
        train(keep="best", patience=1, seed=seed, folder=tmp_path / str(seed))
    runs = [read_run(tmp_path / str(seed)) for seed in range(4)]
    assert len({run.last_round for run in runs}) > 1
    (one,), _ = group(runs)
    assert len(one.whole) == 4
    assert not one.partial


def test_how_often_a_run_is_evaluated_tells_arms_apart_where_evaluations_are_chosen_from(
    tmp_path: Path,
) -> None:
    for keep, every in itertools.product(("last", "best"), (2, 3)):
        train(keep=keep, eval_every=every, rounds=6, seed=every, folder=tmp_path / f"{keep}{every}")
    for keep, arms in (("last", 1), ("best", 2)):
        found, _ = group([read_run(tmp_path / f"{keep}{every}") for every in (2, 3)])
        assert len(found) == arms
