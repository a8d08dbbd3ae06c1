"""Which runs belong together: real runs made in Python and by configs, and laws of the rule."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._cli.app import app
from fedgradnorm._report.frame import read_report, report_of
from fedgradnorm._report.grid import to_csv, to_terminal
from fedgradnorm._report.page import page_of
from fedgradnorm._report.tables import methods_grid, tasks_grid
from fedgradnorm._runs.reader import StoredRun, collect
from fedgradnorm.experiments._groups import data_sets, group

WIDE = nn.Sequential(nn.Linear(toys.FEATURES, 9), nn.ReLU()).double()


@pytest.fixture(scope="module")
def python_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs made in Python that differ in one thing each."""
    place = tmp_path_factory.mktemp("runs")
    more = [dataclasses.replace(c, train=(c.train[0] + 0.1, c.train[1])) for c in toys.clients()]
    plain = {"network": toys.network(), "clients": toys.clients(), "seed": 0, "rounds": 2}
    for name, change in {
        "plain-0": {}, "plain-1": {"seed": 1}, "alone": {"share": "none"}, "fast": {"lr": 0.01},
        "wide": {"network": WIDE}, "other-data": {"clients": more}, "again": {"log_every": 2},
    }.items():  # fmt: skip
        options = {**plain, "lr": 0.001, **change}
        network, clients = options.pop("network"), options.pop("clients")
        flat.train(network, clients, weighting=fgn.Equal(), folder=place / name, **options)
    return place


def names(groups) -> dict[str, list[str]]:
    return {one.label: sorted(run.name for run in one.whole) for one in groups}


def test_runs_made_in_python_are_told_apart(python_runs: Path) -> None:
    groups, notes = group(collect([python_runs])[0])
    found = names(groups)
    assert sorted(found.values()) == [
        ["alone"], ["fast"], ["other-data"], ["plain-0", "plain-1"], ["wide"],
    ]  # fmt: skip
    assert all(label.startswith("Equal") for label in found)
    assert any("lr=0.01" in label for label in found)
    assert any("share=none" in label for label in found)
    assert [note for note in notes if "again repeats plain-0" in note]


def test_every_way_to_show_python_runs_has_the_same_lines(python_runs: Path) -> None:
    runs = collect([python_runs])[0]
    labels = {one.label for one in group(runs)[0]}
    report = report_of(runs)
    assert set(report.variants) == set(report.frame.variant) == labels
    assert {row[1].text for row in tasks_grid(report).rows} == labels
    assert all(label in page_of(report).html for label in labels)


def test_other_data_is_never_tested_against(python_runs: Path) -> None:
    report = read_report([python_runs])
    (other,) = (k for k, one in report.groups.items() if one.whole[0].name == "other-data")
    assert other not in set(report.effects["loss"].variant)
    assert len(data_sets(list(report.groups.values()))) == 2
    assert any(note.startswith("not like for like") for note in report.notes)


def test_a_python_run_says_what_its_data_and_network_were(python_runs: Path) -> None:
    manifest = next(run.manifest for run in collect([python_runs])[0] if run.name == "wide")
    assert manifest["network"]["class"] == "Sequential"
    assert manifest["network"]["parameters"] == 9 * toys.FEATURES + 9
    assert manifest["clients"]["corner"]["splits"] == {"train": 48, "test": 20}
    assert manifest["clients"]["corner"]["inputs"] == [toys.FEATURES]
    prints = {client["fingerprint"] for client in manifest["clients"].values()}
    assert len(prints) == 3


def stored(method="fedrep", seed=0, *, loss=1.0, split="test", finished=True, rounds=3, **more):
    """A run of one task, its last loss ``loss``; ``more`` is its config and what run.json says."""
    rows = []
    for number in range(rounds + 1):
        value = loss + (rounds - number)
        here = {"round": number, "epoch": float(number), "client": "a", "weight": 1.0}
        for place in dict.fromkeys(("train", split)):
            rows.append({**here, "split": place, "loss": value, "accuracy": 1 / (1 + value)})
    config = {"name": "x", "method": method, "seed": seed, **more.pop("config", {})}
    manifest = {"finished": finished, "rounds": rounds, **more}
    return StoredRun(f"{method}-{seed}-{loss}", method, seed, rows, manifest, config)


def own(lr: float) -> dict:
    return {"config": {"own": {"weighting.lr": lr}, "weighting": {"lr": lr}}}


def test_a_variant_is_not_merged_with_its_method() -> None:
    runs = [stored("fedgradnorm", seed, loss=0.445) for seed in range(5)]
    runs += [stored("fedgradnorm", seed, loss=0.34, **own(0.008)) for seed in range(5)]
    means = report_of(runs).frame.groupby("variant", sort=False).loss.agg(["size", "mean"])
    assert [(name, row["size"], row["mean"]) for name, row in means.iterrows()] == [
        ("fedgradnorm", 5, pytest.approx(0.445)),
        ("fedgradnorm weighting.lr=0.008", 5, pytest.approx(0.34)),
    ]


def rate(lr: float) -> dict:
    return {"settings": {"lr": lr}}


def test_rates_stand_beside_each_other_and_a_test_across_rates_is_said() -> None:
    runs = [stored("fedrep", seed, **rate(0.1)) for seed in (0, 1)]
    runs += [stored("fedgradnorm", s, loss=lr, **rate(lr)) for s in (0, 1) for lr in (0.1, 0.2)]
    report = report_of(runs)
    assert report.variants == ["fedrep", "fedgradnorm lr=0.1", "fedgradnorm lr=0.2"]
    told = [note for note in report.notes if "compared with" in note]
    assert told == ["fedgradnorm lr=0.2: compared with fedrep, which differs in training.lr"]


def test_each_rate_is_tested_against_its_own_baseline() -> None:
    runs = [
        stored(method, seed, loss=lr, **rate(lr))
        for method in ("fedrep", "fedgradnorm")
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    report = report_of(runs)
    found = report.effects["loss"].set_index("variant").effect
    assert (found[report.variants[2:]] == 0).all()
    assert not [note for note in report.notes if "compared with" in note]


def data(**table) -> dict:
    return {"config": {"data": {"source": "mtfl", **table}}}


def test_experiments_on_other_data_are_shown_and_not_compared(tmp_path: Path) -> None:
    runs = [
        stored(method, seed, loss=1 + seed / 9 + (method == "fedrep"), **data(allocation=kind))
        for kind in ("even", "uneven")
        for method in ("fedrep", "fedgradnorm")
        for seed in range(3)
    ]
    runs += [
        stored(
            "fedgradnorm", s, config={**own(0.008)["config"], **data(allocation="odd")["config"]}
        )
        for s in range(3)
    ]
    report = report_of(runs)
    assert len(report.variants) == 5
    (alone,) = (name for name, one in report.groups.items() if one.own)
    assert alone not in set(report.effects["loss"].variant)
    assert f"{alone}: not compared, there is no fedrep on the same data" in report.notes
    for row in report.effects["loss"].itertuples():
        kinds = {report.groups[n].facts["data.allocation"] for n in (row.variant, row.base)}
        assert len(kinds) == 1
    assert "only runs on the same data are compared" in page_of(report).html


def test_a_training_metric_is_never_called_held_out() -> None:
    runs = [stored(method, seed, split="train") for method in ("fedrep", "dwa") for seed in (0, 1)]
    report = report_of(runs)
    assert "held_out" not in to_csv(tasks_grid(report)).splitlines()[0]
    assert report.effects["score"].empty
    held_out = [r for r in methods_grid(report).rows if r[1].text == "held-out metric"]
    assert all(cell.text in ("-", r[0].text, "held-out metric") for r in held_out for cell in r)
    assert "no held-out metric, because no examples were held out: a" in report.notes
    assert "on training data" in page_of(report).html
    assert "held-out data" not in page_of(report).html


def test_a_table_of_mixed_splits_says_where_each_number_is_from() -> None:
    mixed = stored("fedrep")
    rest = [{**row, "client": "b"} for row in stored("fedrep", split="train").rows]
    one = dataclasses.replace(mixed, rows=mixed.rows + rest)
    console = Console(file=io.StringIO(), width=120)
    console.print(*to_terminal(tasks_grid(report_of([one]))))
    text = console.file.getvalue()
    assert "% (test)" in text
    assert "% (train)" in text


def test_a_factor_on_a_loss_is_divided_out_everywhere(tmp_path: Path) -> None:
    scaled = [
        dataclasses.replace(c, task=toys.task(c.name, loss_scale=100.0)) for c in toys.clients()
    ]
    plain = fgn.train(toys.network(), toys.clients(), rounds=1, lr=1e-9, folder=tmp_path / "plain")
    fgn.train(toys.network(), scaled, rounds=1, lr=1e-9, folder=tmp_path / "scaled")
    wanted = plain.summary().last_loss
    for row in read_report([tmp_path]).frame.itertuples():
        assert row.loss == pytest.approx(wanted[row.task], rel=1e-6)
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "f.html")])
    assert shown.exit_code == 0
    for value in wanted:
        assert (
            shown.output.count(f"{value:.{1 if value >= 100 else 2 if value >= 10 else 3}f}") >= 2
        )


def test_seeds_of_unknown_number_and_damaged_settings_are_kept_apart() -> None:
    whole = [stored("fedrep", seed, **rate(0.1)) for seed in (0, 1)]
    damaged = stored("fedrep", 2, finished=False)
    unknown = [dataclasses.replace(stored("dwa"), seed=-1, name=f"u{i}") for i in range(2)]
    groups, _ = group([*whole, damaged, *unknown])
    assert sorted(len(one.whole) for one in groups) == [1, 2, 2]
    assert len({one.label for one in groups}) == 3
    assert list(groups[-1].seeds) == [-1, -2]


FACTS = st.fixed_dictionaries({
    "method": st.sampled_from(["fedrep", "fedgradnorm", "mine"]),
    "seed": st.integers(0, 2),
    "lr": st.sampled_from([0.1, 0.2]),
    "samples": st.sampled_from([10, 20]),
    "own": st.sampled_from([{}, {"weighting.lr": 1}]),
    "point": st.sampled_from([{}, {"k": 1}, {"k": 2}]),
    "print": st.sampled_from(["x", "y", None]),
    "finished": st.booleans(),
    "rounds": st.integers(1, 2),
})  # fmt: skip


def made(number: int, f: dict) -> StoredRun:
    clients = {"a": {"size": 4, **({"fingerprint": f["print"]} if f["print"] else {})}}
    run = stored(
        f["method"], f["seed"], finished=f["finished"], rounds=f["rounds"], clients=clients,
        settings={"lr": f["lr"]},
        config={"data": {"samples": f["samples"]}, "own": f["own"], "point": f["point"]},
    )  # fmt: skip
    return dataclasses.replace(run, name=f"run {number}")


@settings(max_examples=150, deadline=None)
@given(st.lists(FACTS, min_size=1, max_size=12))
def test_no_run_is_lost_merged_or_tested_on_other_data(facts: list[dict]) -> None:
    runs = [made(number, f) for number, f in enumerate(facts)]
    groups, notes = group(runs)
    labels = [one.label for one in groups]
    assert len(set(labels)) == len(labels)
    placed = [run.name for one in groups for run in (*one.whole, *one.partial)]
    left_out = [run.name for run in runs if any(n.startswith(f"{run.name} repeats") for n in notes)]
    assert sorted(placed + left_out) == sorted(run.name for run in runs)
    for one in groups:
        seeds = [run.seed for run in (*one.whole, *one.partial)]
        assert len(set(seeds)) == len(seeds)
        for run in (*one.whole, *one.partial):
            assert (run.method, run.part("own"), run.part("point")) == (
                one.method,
                one.own,
                one.point,
            )
            assert run.part("settings") == one.whole[0].part("settings")
            assert run.config["data"] == one.whole[0].config["data"]
        assert len({run.last_round for run in one.whole}) == 1
    report = report_of(runs)
    for row in report.frame[report.frame.base != ""].itertuples():
        ours, theirs = (report.groups[name].seeds for name in (row.variant, row.base))
        if row.seed in theirs:
            assert _compatible(ours[row.seed], theirs[row.seed])


def _compatible(one: StoredRun, other: StoredRun) -> bool:
    prints = [run.part("clients")["a"].get("fingerprint") for run in (one, other)]
    if None in prints:
        return one.config["data"] == other.config["data"]
    return prints[0] == prints[1]


def test_means_are_of_the_seeds_that_are_named() -> None:
    runs = [stored("fedrep", seed, loss=1.0 + seed) for seed in range(4)]
    assert report_of(runs).frame.loss.mean() == pytest.approx(np.mean([1, 2, 3, 4]))
