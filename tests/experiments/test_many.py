"""Many clients: some are evaluated, some are recorded, and quantiles stand for all of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedgradnorm as fgn
import flat
import toys
from experiments.resuming import stored
from fedgradnorm._round.settings import Settings, scope_of
from fedgradnorm._runs import manifest
from fedgradnorm._runs.spread import ALL_ROWS, MANY, SHARES, groups_of, quantiles, recorded
from fedgradnorm._training import recording
from fedgradnorm._training.trackers import scalars

HOW: dict[str, Any] = {"rounds": 6, "batch_size": 4, "eval_every": 2, "lr": 0.01, "device": "cpu"}


def crowd(count: int = 10) -> list[fgn.Client]:
    """Clients of two kinds, each with rows of its own, and a task with a name."""
    made = []
    for k in range(count):
        kind = ("side", "place")[k % 2]
        named = dataclasses.replace(toys.task(kind), name=kind)
        made.append(
            fgn.Client(f"c{k}", named, train=toys.rows(kind, 5 + k % 7), test=toys.rows(kind, 4))
        )
    return made


def go(count: int = 10, **more: Any) -> fgn.Run:
    return flat.train(toys.network(), crowd(count), **{**HOW, **more})


def places(frame: pd.DataFrame) -> set[tuple[Any, ...]]:
    return set(frame[["round", "client", "split"]].itertuples(index=False, name=None))


WAYS = {
    "shared": {},
    "loop": {"executor": "loop"},
    "alone": {"share": "none"},
    "ditto": {"ditto": 0.1},
    "some": {"participation": 0.3},
}


@pytest.mark.parametrize("way", WAYS)
def test_who_is_evaluated_follows_from_seed_and_round_and_changes_no_number(way: str) -> None:
    whole, some = go(**WAYS[way]), go(**WAYS[way], eval_clients=0.3)
    again = go(**{**WAYS[way], "eval_clients": 3, "executor": "loop"})
    assert places(some.history) == places(again.history)
    frame = some.history[some.history.split == "test"]
    counts = frame.groupby("round").client.nunique()
    assert counts.to_dict() == {0: 3, 2: 3, 4: 3, 6: 10}  # the last is of all: they are few
    drawn = frame.groupby("round").client.agg(frozenset)
    assert len({drawn[0], drawn[2], drawn[4]}) > 1
    both = whole.history.merge(some.history, on=["round", "client", "split"])
    assert len(both) == len(some.history)
    np.testing.assert_array_equal(both.loss_x, both.loss_y)
    other = go(**WAYS[way], eval_clients=3, seed=1).history
    assert places(other) != places(some.history)


def test_of_very_many_clients_the_last_evaluation_is_of_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "ALL_AT_END", 9)
    last = go(eval_clients=4).history.query("round == 6 and split == 'test'")
    assert len(last) == 4


def test_several_tasks_of_a_client_are_evaluated_and_recorded_together() -> None:
    x, (_, y), (_, z) = toys.rows("side", 12)[0], toys.rows("side", 12), toys.rows("place", 12)
    tasks = {"side": toys.task("side"), "place": toys.task("place")}
    clients = [
        fgn.Client(f"c{k}", tasks=tasks, train=(x + k, {"side": y, "place": z})) for k in range(5)
    ]
    run = flat.train(toys.network(), clients, **HOW, eval_clients=2, record_clients=["c1"])
    first = run.history.query("round == 0 and split == 'train'").client
    assert len(first) == 4
    assert len({name.split("/")[0] for name in first}) == 2
    batch = run.history.query("split == 'batch'").client
    assert set(batch) == {"c1/side", "c1/place"}
    assert set(run.spread.task) == {"side", "place"}


@pytest.mark.parametrize("keep", ["best", "own_best"])
def test_a_best_round_needs_the_same_clients_each_time(keep: str) -> None:
    with pytest.raises(fgn.ConfigError, match=r"leave evaluation.clients out"):
        Settings(keep=keep, eval_clients=3)


@pytest.mark.parametrize("value", [0, 0.0, 1.5, -1, True, "all"])
def test_what_is_no_number_of_clients_is_refused(value: Any) -> None:
    with pytest.raises(fgn.ConfigError, match=r"evaluation.clients"):
        Settings(eval_clients=value)


@pytest.mark.parametrize("value", [-1, 0.5, "c1", [1]])
def test_what_names_no_clients_is_refused(value: Any) -> None:
    with pytest.raises(fgn.ConfigError, match=r"history.clients"):
        Settings(record_clients=value)


def test_a_client_to_record_must_be_there() -> None:
    with pytest.raises(fgn.ConfigError, match=r"'c11'.*did you mean 'c1'"):
        go(record_clients=["c11"])


def test_a_deployment_has_no_such_settings() -> None:
    assert not scope_of("eval_clients").deployed
    assert not scope_of("record_clients").deployed


@pytest.mark.parametrize("count", [MANY + 1, ALL_ROWS])
def test_up_to_some_hundreds_all_rows_are_kept(count: int) -> None:
    few = dataclasses.replace(toys.client("corner", 4), head=None)
    clients = [dataclasses.replace(few, name=f"c{k}") for k in range(count + 1)]
    assert recorded(clients[:count], Settings()) is None
    more = recorded(clients, Settings())
    assert more is None if count < ALL_ROWS else len(more) == MANY
    assert more is None or more != recorded(clients, Settings(seed=1))
    assert recorded(clients, Settings(record_clients=len(clients))) is None


def test_quantiles_of_all_stand_beside_the_rows_of_some() -> None:
    """They are those of the run that keeps all rows; first and last evaluation are whole."""
    whole, some = go(participation=0.6), go(participation=0.6, record_clients=["c3", "c4"])
    pd.testing.assert_frame_equal(whole.spread, some.spread)
    frame, kept = whole.history, some.history
    ends = frame["round"].isin([0, 6]) & (frame.split != "batch")
    expected = frame[ends | frame.client.isin(["c3", "c4"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, expected)
    assert some.weights == whole.weights
    pd.testing.assert_frame_equal(some.summary(), whole.summary())
    batch = some.spread.query("split == 'batch' and quantity == 'loss' and round == 2")
    assert batch.clients.sum() == 6  # those that participated
    one = frame.query("split == 'test' and round == 4 and client in ['c0','c2','c4','c6','c8']")
    row = some.spread.query("split == 'test' and round == 4 and quantity == 'accuracy'").iloc[0]
    assert (row.task, row.clients) == ("side", 5)
    assert row["median"] == one.accuracy.median()
    assert row["max"] == one.accuracy.max()
    assert row["p10"] == np.quantile(one.accuracy, 0.1)


def test_values_that_are_not_finite_have_no_place() -> None:
    assert quantiles([1.0, 2.0, 3.0])["clients"] == 3
    run = go(record_clients=0)
    rows = [{**row, "loss": np.inf} for row in run.table.rows[:1]] + run.table.rows[1:]
    run.table.rows, run.quantiles.rows = rows, []
    first = run.spread.query("round == 0 and quantity == 'loss' and task == 'side'")
    assert sorted(first.clients) == [4, 5]
    assert np.isfinite(first["max"]).all()


@pytest.mark.parametrize("count", [1, 2, 3, 49, 50, 100])
def test_quantiles_are_numpys_own(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count).round(2) + 0.0
    found = quantiles(values.tolist())
    assert found["mean"] == values.mean()
    assert [found[key] for key in SHARES] == np.quantile(values, list(SHARES.values())).tolist()


def test_run_json_of_many_clients_is_written_in_parts(tmp_path: Path) -> None:
    clients = {
        f"cl\u00efent {k}": {"kind": "binary", "size": k} for k in range(2 * manifest.MANY + 1)
    }
    told = {"format": 1, "clients": clients, "weights": dict.fromkeys(clients, 0.1), "none": {}}
    manifest.write_manifest(tmp_path, told)
    text = (tmp_path / "run.json").read_text(encoding="utf-8")
    written = json.loads(text)
    assert text == json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n"
    assert written.pop("checksum")
    assert written == told


def test_clients_are_told_apart_by_tasks_unless_these_are_many() -> None:
    named = {f"c{k}": {"task": f"t{k % 3}", "kind": "regression"} for k in range(40)}
    assert set(groups_of(named).values()) == {"t0", "t1", "t2"}
    own = {f"c{k}": {"task": f"c{k}", "kind": ("binary", "regression")[k % 2]} for k in range(40)}
    assert set(groups_of(own).values()) == {"binary", "regression"}
    many = {f"c{k}": {"task": f"t{k}", "kind": "regression"} for k in range(40)}
    assert set(groups_of(many).values()) == {"regression"}


def test_a_run_that_is_stopped_and_resumed_leaves_the_same_bytes(tmp_path: Path) -> None:
    how = {"record_clients": 3, "eval_clients": 4, "participation": 0.5, "checkpoint_every": 3}
    go(**how, folder=tmp_path / "whole")

    def stop(event: Any) -> None:
        if event.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        go(**how, folder=tmp_path / "cut", progress=stop)
    spread = tmp_path / "cut" / "spread.csv"
    spread.write_text(spread.read_text() + "7,1.0,batch,side,loss,")  # what a kill leaves
    go(**how, folder=tmp_path / "cut", resume=True)
    one, two = stored(tmp_path / "whole"), stored(tmp_path / "cut")
    assert toys.same(one, two)
    assert "spread.csv" in one
    loaded = fgn.load(tmp_path / "cut")
    pd.testing.assert_frame_equal(loaded.spread, fgn.load(tmp_path / "whole").spread)
    copied = fgn.load(loaded.save(tmp_path / "copy"))
    pd.testing.assert_frame_equal(loaded.spread, copied.spread)
    with pytest.raises(fgn.RunFolderError, match="other settings"):
        go(**{**how, "eval_clients": 5}, folder=tmp_path / "cut", resume=True)


def test_quantiles_that_were_changed_are_found_out(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        go(record_clients=1, folder=tmp_path / "run", progress=stop)
    spread = tmp_path / "run" / "spread.csv"
    spread.write_text(spread.read_text().replace("side", "tide"))
    with pytest.raises(fgn.RunFolderError, match=r"spread\.csv is damaged"):
        go(record_clients=1, folder=tmp_path / "run", resume=True)


def test_who_is_told_of_the_progress_hears_of_those_recorded() -> None:
    seen: list[Any] = []
    run = go(record_clients=["c2"], progress=seen.append)
    assert {row["client"] for event in seen for row in event.rows} == {"c2"}
    spread = [row for event in seen for row in event.spread]
    assert spread == run.quantiles.rows
    names = dict(scalars(spread[0]))
    assert names["train/loss/side/median"] == spread[0]["median"]
    assert len(names) == 7
