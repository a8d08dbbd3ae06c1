"""Tables from runs: what they say, in four forms, whatever the run folders hold."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
import scipy.stats
from rich.console import Console

from fedgradnorm import RunFolderError
from fedgradnorm._cli import output
from fedgradnorm._report.figures import draw
from fedgradnorm._report.frame import MANY, read_report, report_of
from fedgradnorm._report.grid import Cell, Grid, to_csv, to_latex, to_markdown, to_terminal
from fedgradnorm._report.tables import (
    SIGHTS,
    all_grids,
    methods_grid,
    shown_grids,
    sight,
    tasks_grid,
    write_tables,
)
from fedgradnorm._runs.reader import StoredRun
from report.made_runs import many, run

METHODS = ("fedrep", "fedgradnorm", "local")


def three(seeds=3, **rest):
    return [run(m, s, i / 10, **rest) for i, m in enumerate(METHODS) for s in range(seeds)]


def cells(grid, **wanted):
    """The only row that holds the wanted texts, by column title."""
    rows = [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]
    found = [r for r in rows if all(r[key].text == text for key, text in wanted.items())]
    assert len(found) == 1
    return found[0]


def test_losses_effects_and_gains_by_hand():
    report = report_of(three())
    frame = report.frame.set_index(["variant", "task", "seed"]).sort_index()
    ours, theirs = (frame.loc[m, "gender"] for m in ("fedgradnorm", "fedrep"))
    row = cells(tasks_grid(report), task="gender", method="fedgradnorm")
    low, high = scipy.stats.t.interval(0.95, 2, ours.loss.mean(), scipy.stats.sem(ours.loss))
    numbers = row["training loss"].numbers
    assert [numbers[k] for k in ("", "_low", "_high")] == pytest.approx(
        [ours.loss.mean(), low, high]
    )
    effect = 100 * (ours.score - theirs.score)
    assert row["against fedrep"].numbers[""] == pytest.approx(effect.mean())
    assert row["against fedrep"].text.endswith("points")
    line = cells(methods_grid(report), method="fedgradnorm", **{"measured on": "training loss"})
    gains = 100 * (1 - frame.loc["fedgradnorm"].loss / frame.loc["fedrep"].loss)
    assert line["Δm against fedrep"].numbers[""] == pytest.approx(gains.mean())
    assert line["Δm against local"].numbers[""] < 0
    assert line["MB sent"].numbers[""] == pytest.approx(0.008)
    assert line["seconds"].text == "2.0"
    base = cells(methods_grid(report), method="fedrep", **{"measured on": "held-out metric"})
    assert base["Δm against fedrep"].text == "-"
    assert ours.reached.mean() <= 4


def test_every_table_of_tasks_shows_the_constant_baseline():
    row = cells(tasks_grid(report_of(three(constant=0.6))), task="gender", method="local")
    assert row["constant"].text == "60.0 %"
    runs = [run(m, 0, point={"k": p}, constant=0.6) for m in METHODS for p in (1, 2)]
    score, *_ = shown_grids(report_of(runs))
    assert cells(score, task="gender (%)", method="constant")["1"].text == "60.0"


def test_the_first_table_is_held_out_and_of_many_methods_a_row_for_each():
    runs = [run(m, 0, point={"k": p}) for m in METHODS for p in (1, 2)]
    assert shown_grids(report_of(runs))[0].name == "sweep-held-out"
    assert shown_grids(report_of(three()))[0].name == "tasks"
    crowd = [run(f"own-{n}", 0) for n in range(MANY + 1)]
    assert shown_grids(report_of(crowd))[0].name == "methods"


def test_a_gain_relative_to_nothing_is_not_written_out():
    runs = [run("fedrep", s, 1 - 1e-6) for s in range(2)] + [run("dwa", s) for s in range(2)]
    grid = methods_grid(report_of(runs))
    line = cells(grid, method="dwa", **{"measured on": "training loss"})
    assert line["Δm against fedrep"].text == "< -1000 %"
    assert line["Δm against fedrep"].numbers[""] < -1000
    assert any("close to zero" in note for note in grid.notes)
    assert not any("close to zero" in note for note in methods_grid(report_of(three())).notes)


def test_one_seed_says_so():
    grid = tasks_grid(report_of(three(1)))
    assert not {"p", "p (loss)"} & set(grid.columns)
    assert "one seed: no intervals and no tests" in grid.notes
    assert "±" not in to_markdown(grid)


def test_a_sweep_is_shown_side_by_side_and_compared_at_the_same_point(tmp_path):
    runs = [
        run(m, s, p / 10, point={"data.loss_scale.value": p})
        for p in (2, 1) for s in range(2) for m in ("fedrep", "fedgradnorm")
    ]  # fmt: skip
    runs += [run("local", s) for s in range(2)]
    report = report_of(runs)
    _, loss = shown_grids(report)
    assert loss.columns == ("task", "method", "1", "2")
    local = cells(loss, task="gender", method="local")
    assert local["1"] == local["2"]
    for point in ("1", "2"):
        wanted = {"method": f"fedgradnorm value={point}", "measured on": "training loss"}
        assert abs(cells(methods_grid(report), **wanted)["Δm against fedrep"].numbers[""]) < 1
    assert [p.name for p in draw(report, tmp_path)] == ["sweep.png"]


def test_unfinished_runs_count_only_where_there_are_no_others():
    stopped = run("fedgradnorm", 1, finished=False)
    del stopped.rows[10:]
    report = report_of([run("fedrep"), run("fedrep", 1), run("fedgradnorm"), stopped])
    assert list(report.groups["fedgradnorm"].seeds) == [0]
    notes = " ".join(report.notes)
    assert "fedgradnorm-seed1 is not finished: round 1 of 4, epoch 1.0" in notes
    assert "fedgradnorm: no finished run of seed 1" in notes
    alone = report_of([run("fedrep"), stopped])
    assert alone.variants[1] == "fedgradnorm (unfinished)"


def test_damaged_folders_are_named_and_the_rest_is_shown(tmp_path):
    for name in ("fedrep", "fedgradnorm"):
        folder = tmp_path / f"{name}-seed0"
        folder.mkdir()
        lines = ["round,epoch,client,split,loss,weight,accuracy"]
        lines += [f"{r},{r}.0,a,{s},{1 / (r + 1)},1.0,0.5" for r in range(3)
                  for s in ("train", "test")]  # fmt: skip
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        (folder / "config.toml").write_text(f'method = "{name}"\nseed = 0\n')
    (tmp_path / "fedrep-seed0" / "run.json").write_text(json.dumps({"format": 1, "finished": True}))
    (tmp_path / "fedgradnorm-seed0" / "run.json").write_text("{damaged")
    report = read_report([tmp_path, tmp_path / "nothing"])
    assert [one.method for one in report.groups.values()] == ["fedrep", "fedgradnorm"]
    notes = " ".join(report.notes)
    assert "run.json is damaged" in notes
    assert "nothing is no run folder" in notes
    all_grids(report)
    with pytest.raises(RunFolderError, match="no run of the baseline 'other'"):
        read_report([tmp_path], "other")
    assert report_of([StoredRun("empty", "fedrep", 0, [])]).frame.empty


def test_a_diverged_run_is_shown_as_such():
    broken = [run("fedgradnorm", seed) for seed in range(2)]
    for row in (row for one in broken for row in one.rows[-4:]):
        row["loss"] = math.nan
    report = report_of([run("fedrep"), run("fedrep", 1), *broken])
    row = cells(tasks_grid(report), task="gender", method="fedgradnorm")
    assert row["training loss"].text == "nan"
    all_grids(report)


def test_the_papers_numbers_are_next_to_its_table_and_not_next_to_variants():
    more = {"name": "table2", "data": {"source": "mtfl"}}
    runs = [run("fedrep", **more), run("fedgradnorm", **more),
            run("fedgradnorm", own={"weighting.lr": 0.008}, **more)]  # fmt: skip
    grid = tasks_grid(report_of(runs))
    row = cells(grid, task="gender", method="fedgradnorm")
    assert row["paper's loss"].text == "0.56"
    variant = cells(grid, task="gender", method="fedgradnorm weighting.lr=0.008")
    assert variant["paper's loss"].text == "-"


def test_variants_follow_their_method_and_are_no_sweep():
    steps = [{"weighting.lr": "schedule"}, {"weighting.lr": 0.016}, {"weighting.lr": 0.008}, {},
             {"weighting.lr": {"nested": 1.0}}]  # fmt: skip
    runs = [run("fedgradnorm", seed, own=own) for own in steps for seed in (0, 1)]
    runs += [run(method, seed) for method in ("fedgradnorm-direct", "fedrep") for seed in (0, 1)]
    report = report_of(runs, "fedgradnorm")
    assert report.points == []
    assert report.variants == [
        "fedgradnorm", "fedgradnorm weighting.lr=0.008", "fedgradnorm weighting.lr=0.016",
        "fedgradnorm weighting.lr=schedule", "fedgradnorm weighting.lr={'nested': 1.0}",
        "fedgradnorm-direct", "fedrep",
    ]  # fmt: skip
    assert set(report.effects["score"].variant) == set(report.variants[1:])


def test_a_baseline_with_settings_of_its_own_is_still_one():
    runs = [run("fedrep", seed, own={"lr": lr}) for seed in (0, 1) for lr in (0.2, 0.1)]
    runs += [run("fedgradnorm", seed, own={"lr": 0.2}) for seed in (0, 1)]
    report = report_of([*runs, *(run("local", seed) for seed in (0, 1))])
    assert report.points == []
    bases = report.frame.drop_duplicates("variant").set_index("variant").base
    assert set(bases[report.variants[1:]]) == {report.variants[0]}  # the first variant, for all


def test_a_variant_next_to_a_sweep_leaves_the_sweep_as_it_is():
    runs = [run("fedgradnorm", point={"weighting.lr": lr}) for lr in (0.1, 0.2)]
    runs += [run("fedgradnorm"), run("fedgradnorm", own={"weighting.gamma": 0.5}), run("fedrep")]
    report = report_of(runs)
    assert [point["weighting.lr"] for point in report.points] == [0.1, 0.2]
    assert report.along("fedgradnorm") == ["fedgradnorm lr=0.1", "fedgradnorm lr=0.2"]


def test_many_methods_are_ranked_by_their_gain():
    broken = [run("ditto", s) for s in (0, 1)]
    for row in (row for one in broken for row in one.rows[-6:]):
        row["loss"] = math.nan
    report = report_of([*many(10), *broken])
    grid = methods_grid(report)
    for group, order in zip(grid.groups, report.ranking.values(), strict=True):
        assert [row[0].text for row in group] == order
    deltas = [row[2].numbers.get("", 0.0) for row in grid.groups[1][:-1]]
    assert deltas == sorted(deltas, reverse=True)
    assert report.ranking["loss"][-1] == "ditto"
    assert "server sees" in grid.columns
    few = methods_grid(report_of(many(4)))
    assert few.rows[0][0].text == "fedrep"
    assert not {"seeds", "server sees"} & set(few.columns)


def test_what_servers_see():
    seen = {name: sight(name) for name in ("fedrep", "famo", "graddrop", "fedavg", "mgda")}
    assert list(seen.values()) == ["nothing", "losses", "gradients", "sizes", "Gram matrix"]
    assert set(seen.values()) < set(SIGHTS)
    assert sight("my own") == ""


def test_synthetic_data_is_said():
    for data, says in (({"source": "radcom"}, "generated signals"),
                       ({"source": "radcom", "path": "x.hdf5"}, ""),
                       ({"source": "faces"}, "drawn faces")):  # fmt: skip
        assert says in report_of([run(data=data)]).synthetic
        assert bool(report_of([run(data=data)]).synthetic) == bool(says)


NASTY = r"a|b & 100% $x_1$ {y} ~^\ <b>[i]*#"


@pytest.fixture
def nasty():
    row = (Cell(NASTY), Cell("1.0 ± 0.1", {"": 1.0, "_low": 0.9, "_high": 1.1}, bold=True))
    return Grid("n", NASTY, ("name", "value"), ((row, row),), (NASTY,))


@pytest.mark.parametrize("terminal", [False, True])
def test_a_name_that_is_wider_than_the_terminal_is_whole(monkeypatch, terminal):
    shown = Console(file=io.StringIO(), width=40, force_terminal=terminal)
    monkeypatch.setattr(output, "out", shown)
    row = (Cell("x" * 2 * output.FILE_WIDTH), Cell("the end"))
    output.say(Grid("n", "wide", ("name", "value"), ((row,),)))
    assert row[0].text in shown.file.getvalue()
    assert "the end" in shown.file.getvalue()


def test_names_are_text_in_every_form(nasty):
    console = Console(file=io.StringIO(), width=120)
    console.print(*to_terminal(nasty))
    assert NASTY in console.file.getvalue()
    rows = list(csv.DictReader(io.StringIO(to_csv(nasty))))
    assert rows[0] == {"name": NASTY, "value": "1", "value_low": "0.9", "value_high": "1.1"}
    lines = to_markdown(nasty).splitlines()
    assert lines[4].startswith(r"| a\|b &amp; 100% $x\_1$ {y} \~^\\ &lt;b&gt;\[i\]\*# |")
    assert lines[4].endswith("| **1.0 ± 0.1** |")
    tex = to_latex(nasty)
    escaped = (
        r"a|b \& 100\% \$x\_1\$ \{y\} \textasciitilde \textasciicircum "
        r"\textbackslash \space <b>[i]*\#"
    )
    assert escaped + r" & 1.0 $\pm$ 0.1 \\" in tex
    assert f"% {NASTY}\n" in tex


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_a_name_is_no_formula_to_a_spreadsheet_and_a_number_stays_one(start, tmp_path):
    write_tables(report_of([run(clients=(f"{start}cmd()", "b"))]), tmp_path)
    for name in ("tasks", "every-metric"):
        rows = list(csv.reader(io.StringIO((tmp_path / f"{name}.csv").read_text())))
        assert {row[0] for row in rows[1:]} == {f"'{start}cmd()", "b"}
    grid = Grid("n", "n", ("a", "b"), (((Cell("-1.5"), Cell("-", {"": -1.5})),),))
    assert to_csv(grid).splitlines()[1] == "-1.5,-1.5"
