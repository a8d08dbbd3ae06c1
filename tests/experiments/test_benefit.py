"""The benefit: laws of the gains and their intervals, and what is refused."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from experiments.overfitting import paired_clients
from experiments.test_stopping import clients, losses
from fedgradnorm._benefit.benefit import HEADS, Benefit, over_seeds, validation_gains
from fedgradnorm._benefit.client_gain import (
    UNCLEAR,
    HeldOut,
    client_gains,
    interval,
    resampled_means,
)

HOW = {"rounds": 5, "batch_size": 8, "lr": 0.05, "device": "cpu", "eval_every": 1}


def train(data: list[fgn.Client] | None = None, **more: Any) -> fgn.Run:
    given = {**HOW, "weighting": fgn.Equal(), **more}
    return flat.train(toys.network(), data or clients(), **given)


@pytest.fixture(scope="module")
def joined() -> fgn.Run:
    return train()


@pytest.fixture(scope="module")
def alone() -> fgn.Run:
    return train(share="none")


def test_against_itself_nobody_gains_or_loses(joined: fgn.Run) -> None:
    for by in ("score", "loss"):
        table = joined.benefit(joined, clients(), by=by).table
        assert (table.gain == 0).all()
        assert ((table.low <= 0) & (table.high >= 0)).all()
        assert (table[table.unit == "%"][["low", "high"]] == 0).all(axis=None)
        assert (table.verdict == UNCLEAR).all()
        assert list(table.client) == list(toys.NAMES)


def test_the_numbers_are_those_of_the_last_evaluations(joined: fgn.Run, alone: fgn.Run) -> None:
    table = joined.benefit(alone, clients()).table.set_index("client")
    assert list(table.metric) == ["accuracy", "accuracy", "squared error"]
    assert list(table.unit) == ["points", "points", "%"]
    for name, row in table.iterrows():
        for run, found in ((joined, row.joined), (alone, row.alone)):
            last = run.history[(run.history.client == name) & (run.history.split == "test")].iloc[
                -1
            ]
            expected = last.accuracy if row.metric == "accuracy" else last.loss
            assert found == pytest.approx(expected, rel=1e-9)
        points = 100 * (row.joined - row.alone)
        percent = 100 * (row.alone - row.joined) / row.alone
        assert row.gain == pytest.approx(points if row.unit == "points" else percent)
        assert row.low <= row.gain <= row.high
    by_loss = joined.benefit(alone, clients(), by="loss").table
    assert list(by_loss.metric) == ["cross-entropy", "cross-entropy", "squared error"]
    assert list(by_loss.joined) == pytest.approx(list(losses(joined, split="test").values()))


def test_a_factor_on_the_loss_is_left_out() -> None:
    data = [toys.client("place", 24, loss_scale=7.0)]
    run = train(data)
    (row,) = run.benefit(run, data).gains
    assert row.joined == pytest.approx(losses(run, split="test")["place"] / 7)


def test_running_statistics_are_the_clients_own() -> None:
    how = {**HOW, "weighting": fgn.Equal()}
    run = flat.train(toys.noisy_network(), clients(), **how)
    table = run.benefit(run, clients(), by="loss").table
    assert list(table.joined) == pytest.approx(list(losses(run, split="test").values()), rel=1e-5)


def test_the_order_of_clients_decides_nothing(joined: fgn.Run, alone: fgn.Run) -> None:
    there, back = clients(), clients()[::-1]
    left, right = (joined.benefit(alone, data) for data in (there, back))
    assert sorted(left.gains, key=str) == sorted(right.gains, key=str)
    part = joined.benefit(alone, there[:1])
    assert part.gains[0].client == left.gains[0].client
    assert part.gains[0].gain == left.gains[0].gain


def test_a_seed_gives_the_same_interval_and_another_one_nearly(
    joined: fgn.Run, alone: fgn.Run
) -> None:
    one, again, other = (joined.benefit(alone, clients(), seed=s) for s in (1, 1, 2))
    assert one.gains == again.gains
    assert one.gains != other.gains


@pytest.mark.parametrize("rows", [8, 30, 200])
@pytest.mark.parametrize("metric", ["squared error", "accuracy"])
def test_intervals_cover_the_truth(rows: int, metric: str) -> None:
    """Of intervals of 95 % about 19 in 20 hold the true gain, from few rows too."""
    chance = np.random.default_rng(rows)
    count = 400
    if metric == "accuracy":
        skill = chance.random((count, rows))  # the easier rows are so for both
        alone, joined = (skill < 0.6).astype(float), (skill < 0.7).astype(float)
        joined = np.where(chance.random((count, rows)) < 0.1, 1 - joined, joined)
        truth = 100 * ((0.7 * 0.9 + 0.3 * 0.1) - 0.6)
    else:
        common = chance.normal(size=(count, rows))
        noise = chance.normal(size=(2, count, rows))
        alone, joined = (common + noise[0]) ** 2, (common + 0.8 * noise[1]) ** 2
        truth = 100 * (2 - 1.64) / 2
    held = [HeldOut(str(i), "t", metric, alone[i], joined[i]) for i in range(count)]
    found = client_gains(held, 0)
    covered = np.mean([one.low <= truth <= one.high for one in found])
    assert covered > (0.88 if rows == 8 else 0.91)


def test_the_interval_of_a_mean_is_students_where_that_is_right() -> None:
    values = np.random.default_rng(0).normal(size=40)
    low, high = interval(resampled_means(values[:, None], 0, draws=20_000)[:, 0], 40)
    half = 2.0227 * values.std(ddof=1) / math.sqrt(40)
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)


def test_many_rows_are_drawn_in_parts_and_nothing_changes(monkeypatch) -> None:
    columns = np.random.default_rng(0).normal(size=(50, 3))
    whole = resampled_means(columns, 3)
    monkeypatch.setattr("fedgradnorm._benefit.client_gain.AT_ONCE", 700)
    np.testing.assert_allclose(resampled_means(columns, 3), whole)


def test_a_training_that_diverged_has_lost_and_is_in_no_mean() -> None:
    rows, nan = np.array([1.0, 2.0, 3.0]), np.full(3, np.nan)
    pairs = {
        "a": (rows, nan),
        "b": (nan, rows),
        "c": (nan, nan),
        "d": (rows, rows),
        "e": (0 * rows, rows),
    }
    held = [HeldOut(name, "t", "squared error", *pair) for name, pair in pairs.items()]
    found = Benefit(tuple(client_gains(held, 0)))
    assert [one.verdict for one in found.gains] == ["loses", "gains", UNCLEAR, UNCLEAR, "loses"]
    assert found.means[0].clients == 1
    assert "Mean gain in squared error: 0.0 %." in found.sentence


def test_one_row_tells_nothing() -> None:
    (one,) = client_gains([HeldOut("a", "t", "squared error", np.ones(1), np.zeros(1))], 0)
    assert (one.gain, one.verdict) == (100.0, UNCLEAR)
    assert math.isnan(one.low)


def many(count: int, rows: int = 40) -> Benefit:
    chance = np.random.default_rng(1)
    held = []
    for i in range(count):
        alone = chance.exponential(size=rows)
        held.append(HeldOut(f"school-{i}", "t", "squared error", alone, alone * (0.6 + i / count)))
    return Benefit(tuple(client_gains(held, 0)))


def test_the_sentence_counts_everybody_and_many_clients_are_folded() -> None:
    found = many(139)
    verdicts = list(found.table.verdict)
    helps, hurts, unclear = (verdicts.count(word) for word in ("gains", "loses", UNCLEAR))
    assert helps + hurts + unclear == 139
    assert found.sentence.startswith(
        f"Joining helps {helps} of 139 clients, hurts {hurts}, and makes no detectable difference "
        f"for {unclear}. Mean gain in squared error: "
    )
    (mean,) = found.means
    assert mean.low < mean.gain < mean.high
    assert mean.gain == pytest.approx(found.table.gain.mean())
    lines = str(found).splitlines()
    assert len(lines) < 20
    assert "school-138" in lines[1]  # the worst first
    assert "124 clients between these are left out" in lines[-2]
    assert len(str(many(20)).splitlines()) == 22


def test_it_is_quick_for_many_clients() -> None:
    began = time.process_time()
    many(139, rows=1000)
    assert time.process_time() - began < 5


def test_seeds_are_averaged(joined: fgn.Run, alone: fgn.Run) -> None:
    one, two = (joined.benefit(alone, clients(), seed=s) for s in (1, 2))
    both = over_seeds([one, replace(two, gains=two.gains[::-1])])
    for mean, a, b in zip(both.gains, one.gains, two.gains, strict=True):
        assert mean.low == pytest.approx((a.low + b.low) / 2)
        assert mean.gain == pytest.approx(a.gain)
        assert mean.client == a.client


def other_rows() -> list[fgn.Client]:
    first, *rest = clients()
    return [replace(first, test=toys.rows("corner", 19)), *rest]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"clients": [replace(c, test=None) for c in clients()]}, fgn.DataError, "no test rows"),
        (
            {"clients": [toys.client("new", kind="side")]},
            fgn.DataError,
            "did not participate in this run",
        ),
        ({"clients": other_rows()}, fgn.DataError, "'corner' had other rows in this run"),
        ({"clients": []}, fgn.DataError, "no clients"),
        ({"clients": [*clients(), *clients()]}, fgn.DataError, "two clients are named 'corner'"),
        ({"clients": "corner"}, fgn.DataError, "must be a list of fgn.Client, not str"),
        ({"clients": ["corner"]}, fgn.DataError, "must be a list of fgn.Client, not of str"),
        ({"alone": "runs/alone"}, fgn.ConfigError, "alone must be a run trained with share='none'"),
        ({"by": "auc"}, fgn.ConfigError, "by"),
        ({"seed": -1}, fgn.ConfigError, "seed must be a whole number >= 0"),
    ],
)
def test_what_does_not_fit_is_refused(
    joined: fgn.Run, alone: fgn.Run, change: dict, error: Any, message: str
) -> None:
    given = {"alone": alone, "clients": clients(), **change}
    with pytest.raises(error) as caught:
        joined.benefit(given.pop("alone"), given.pop("clients"), **given)
    assert message in str(caught.value)


def test_an_unfinished_run_and_one_of_others_are_refused(joined: fgn.Run, alone: fgn.Run) -> None:
    with pytest.raises(fgn.ConfigError, match="the run trained alone is not finished"):
        joined.benefit(replace(alone, finished=False), clients())
    with pytest.raises(fgn.DataError, match="'place' did not participate in the run trained alone"):
        joined.benefit(train(clients()[:2], share="none"), clients())


def test_benefit_trains_both_with_the_same_settings(caplog) -> None:
    how = {**HOW, "keep": "best", "patience": 2, "seed": 4}
    found = flat.benefit(toys.network(), clients(), weighting=fgn.Equal(), **how)
    joined = flat.train(toys.network(), clients(), weighting=fgn.Equal(), **how)
    alone = flat.train(toys.network(), clients(), weighting=fgn.Equal(), share="none", **how)
    assert found.gains == joined.benefit(alone, clients()).gains
    assert found.alone.manifest["settings"]["share"] == "none"
    assert found.alone.manifest["kept"] == alone.manifest["kept"]
    assert found.joined.manifest["kept"] == joined.manifest["kept"]
    assert not caplog.records


@pytest.mark.parametrize(
    "how",
    [{"ditto": 0.1}, {"heads": "task", "weight_per": "task"}, {"personalize": {"steps": 2}}],
)
def test_alone_is_alone_whatever_joined_is(how: dict) -> None:
    given = paired_clients()
    found = flat.benefit(toys.network(), given, keep="best", **HOW, **how)
    plain = flat.train(
        toys.network(), given, keep="best", share="none", weighting=fgn.Equal(), **HOW
    )
    assert torch.equal(
        toys.parameters(found.alone.networks["side"]), toys.parameters(plain.networks["side"])
    )


def test_benefit_warns_once_where_both_overfit(caplog) -> None:
    caplog.set_level(logging.WARNING, "fedgradnorm")
    flat.benefit(toys.network(), toys.clients(), **HOW)
    (record,) = caplog.records
    assert "set validation examples (validation_share), keep_best" in record.getMessage()
    caplog.clear()
    flat.benefit(toys.network(), clients(), **HOW)
    (record,) = caplog.records
    assert "set keep_best and early_stopping" in record.getMessage()


def test_benefit_resumes_and_shows_how_it_goes(tmp_path: Path) -> None:
    how = {**HOW, "keep": "best", "folder": tmp_path}
    whole = flat.benefit(toys.network(), clients(), **{**how, "folder": None})
    seen: list[tuple[str, int]] = []

    def stop(event: Any) -> None:
        seen.append((event.stage, event.round))
        if seen[-1] == ("alone", 2):
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted, match="resume from"):
        flat.benefit(toys.network(), clients(), progress=stop, **how)
    assert seen[0] == ("", 1)
    again = flat.benefit(toys.network(), clients(), resume=True, **how)
    assert again.gains == whole.gains
    loaded = fgn.load(tmp_path / "joined").benefit(fgn.load(tmp_path / "alone"), clients())
    assert loaded.gains == whole.gains


def test_benefit_refuses_before_it_trains() -> None:
    with pytest.raises(fgn.ConfigError, match=r"leave sharing\.share out"):
        flat.benefit(toys.network(), clients(), share="all")
    with pytest.raises(fgn.ConfigError, match="did you mean 'rounds'"):
        fgn.benefit(toys.network(), clients(), round=3)
    with pytest.raises(fgn.DataError, match="no test rows"):
        fgn.benefit(toys.network(), [replace(c, test=None) for c in clients()], rounds=10**9)


# ------------------------------------------------------------------------ heads that are tried


def wards(**changes: Any) -> list[fgn.Client]:
    """Four clients with one task, whose labels differ in prevalence."""

    def rows(place: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        chance = np.random.default_rng([place, count])
        x = chance.normal(size=(count, toys.FEATURES))
        return x, (x[:, 0] + chance.normal(size=count) > place - 1.5).astype(int)

    task = fgn.classification(2, name="sick")
    return [
        replace(fgn.Client(f"ward-{i}", task, rows(i, 20), rows(i, 61), rows(i, 60)), **changes)
        for i in range(4)
    ]


TRIES = {**HOW, "rounds": 12, "keep": "best", "weighting": fgn.Equal()}


@pytest.fixture(scope="module")
def tried() -> Benefit:
    return flat.benefit(toys.network(), wards(), try_heads=True, **TRIES)


def test_the_heads_with_the_least_validation_loss_are_picked(tried: Benefit) -> None:
    """As by hand: a training for each, and the mean of the clients' last validation losses."""
    alone = flat.train(toys.network(), wards(), share="none", **TRIES)
    runs = {n: flat.train(toys.network(), wards(), **TRIES, **how) for n, how in HEADS.items()}
    base = np.mean(list(losses(alone).values()))
    for name, run in runs.items():
        loss = np.mean(list(losses(run).values()))
        assert tried.tried[name] == pytest.approx(100 * (base - loss) / base)
    best = max(HEADS, key=tried.tried.__getitem__)
    assert tried.heads == best
    assert tried.picked == (best if tried.tried[best] > 0 else "training alone")
    assert tried.gains == runs[best].benefit(alone, wards()).gains
    assert tried.sentence.startswith(f"Validation picks {tried.picked} (gain in validation loss ")


def test_test_examples_pick_nothing(tried: Benefit) -> None:
    x, _ = wards()[0].test
    other = wards(test=(x, np.arange(len(x)) % 2))
    again = flat.benefit(toys.network(), other, try_heads=True, **TRIES)
    assert again.tried == tried.tried
    assert again.gains != tried.gains


def test_alone_may_be_picked_and_diverged_heads_never() -> None:
    found = replace(many(2), tried={"own heads": -3.0, "shared heads": -math.inf})
    assert (found.picked, found.heads) == ("training alone", "own heads")
    assert found.sentence.startswith(
        "Validation picks training alone (gain in validation loss over training alone: own heads "
        "-3.0 %, shared heads -inf %). What follows is of own heads. Joining helps "
    )


def test_a_tasks_units_and_number_of_clients_pick_nothing() -> None:
    """The gain of a task is relative, and every task counts once."""
    far = toys.task("place", name="far")
    clients = [*wards(), *(replace(toys.client(name, kind="place"), task=far) for name in "ab")]
    clients = [replace(one, validation=one.train) for one in clients]

    def run(near: float, far: float) -> Any:
        rows = [(one.name, far if one.task_name == "far" else near) for one in clients]
        table = pd.DataFrame(rows, columns=["client", "loss"]).assign(split="validation")
        early = table.assign(loss=math.nan)
        return SimpleNamespace(history=pd.concat([early, table]))

    runs = dict(zip(HEADS, (run(0.5, 2e6), run(math.nan, 1e6), run(1.0, 0.0)), strict=True))
    found = validation_gains(runs, run(1.0, 1e6), clients)
    assert list(found.values()) == pytest.approx([(50 - 100) / 2, -math.inf, (0 + 100) / 2])


@pytest.mark.parametrize(
    ("given", "how", "message"),
    [
        (wards(), {"heads": "task"}, r"tries heads, and sharing.heads = 'task' is set"),
        (wards(validation=None), {}, "picks heads by validation, and no client has validation"),
        (clients(), {}, "no two of the 3 clients share a task"),
        (
            [replace(one, labels=("no", one.name)) for one in wards()], {},
            "whose outputs mean different classes",
        ),
    ],
)  # fmt: skip
def test_heads_that_cannot_be_tried_are_refused_before_training(given, how, message) -> None:
    long = {**TRIES, "rounds": 10**9, "keep": "last"}
    with pytest.raises(fgn.ConfigError, match=message):
        flat.benefit(toys.network(), given, try_heads=True, **long, **how)


def test_a_failing_display_is_named() -> None:
    def screen(_: Any) -> None:
        raise OSError("no paper")

    with pytest.raises(fgn.TrainingError, match=r"callback screen failed at round 1: OSError: no"):
        flat.benefit(toys.network(), clients(), progress=screen, **HOW)


def test_heads_are_not_picked_by_some_of_very_many_clients(monkeypatch) -> None:
    monkeypatch.setattr("fedgradnorm._training.benefit.ALL_AT_END", 1)
    with pytest.raises(fgn.ConfigError, match=r"evaluation\.clients = 1 evaluates some"):
        flat.benefit(
            toys.network(), wards(), try_heads=True, **{**TRIES, "keep": "last", "eval_clients": 1}
        )


def test_tried_heads_are_kept_in_folders_and_resumed(tmp_path: Path, tried: Benefit) -> None:
    how = {**TRIES, "folder": tmp_path, "try_heads": True}
    stages: list[str] = []

    def stop(event: Any) -> None:
        stages.append(event.stage)
        if (event.stage, event.round) == ("shared heads", 3):
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted, match="stopped after round 3"):
        flat.benefit(toys.network(), wards(), progress=stop, **how)
    again = flat.benefit(toys.network(), wards(), resume=True, **how)
    assert again.tried == tried.tried
    assert again.gains == tried.gains
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", *sorted(HEADS)]
