"""Comparisons from run folders: what the tables say, in four forms, whatever the folders hold."""

import csv
import io
import json
import math

import pytest
import scipy.stats
from rich.console import Console

from fedgradnorm._cli import output
from fedgradnorm._errors import RunFolderError
from fedgradnorm._report.arms import LOSS, SCORE
from fedgradnorm._report.cells import bare
from fedgradnorm._report.comparison import comparison_of, read_comparison
from fedgradnorm._report.figures import sweep_points as figures_sweep
from fedgradnorm._report.figures.comparison_figures import draw
from fedgradnorm._report.grid import Cell, Grid, to_csv, to_latex, to_markdown, to_terminal
from fedgradnorm._report.samples import sample_of
from fedgradnorm._report.tables.comparison_grids import (
    all_grids,
    methods_grid,
    shown_grids,
    tasks_grid,
)
from fedgradnorm._stored.reader import StoredRun

LOSSES = {"fedrep": (0.60, 30.0), "fedgradnorm": (0.50, 30.3), "local": (0.55, 40.0)}


def run(method="fedrep", seed=0, finished=True, point=None, scale=1.0, name="a<b>|c_1", **rest):
    small, large = LOSSES.get(method, (0.4, 25.0))
    rows = []
    for epoch in range(5):
        ease = (4 - epoch) / 10 + 0.01 * seed
        for client, loss, factor in ((name, small + ease, 1.0), ("value", large + ease, scale)):
            extra = {"accuracy": 0.9 - loss / 2} if client == name else {"mae": loss / 3}
            here = {"round": 10 * epoch, "epoch": float(epoch), "client": client, "weight": 1.0}
            here |= {"bytes": 1000 * epoch, "samples": 64}
            for split in ("train", "test"):
                rows.append({**here, "split": split, "loss": loss * factor, **extra})
    manifest = {
        "finished": finished, "rounds": 40, "seconds": 2.0,
        "clients": {name: {"loss_scale": 1.0}, "value": {"loss_scale": scale}},
    }  # fmt: skip
    config = {"name": "test", "method": method, "seed": seed, "point": point or {}}
    return StoredRun(f"{method}-seed{seed}", method, seed, rows, manifest, {**config, **rest})


def cells(grid, **wanted):
    """The only row that holds the wanted texts, by column title."""
    rows = [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]
    found = [r for r in rows if all(r[key].text == text for key, text in wanted.items())]
    assert len(found) == 1
    return found[0]


def test_losses_tests_and_gains_by_hand():
    runs = [run(method, seed) for seed in range(3) for method in LOSSES]
    comparison = comparison_of(runs)
    assert comparison.baseline == "fedrep"
    row = cells(tasks_grid(comparison), task="a<b>|c_1", method="fedgradnorm")
    assert row["training loss"].numbers[""] == pytest.approx(0.51)
    half = scipy.stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3)
    assert row["training loss"].numbers["_ci95"] == pytest.approx(half, rel=1e-4)
    assert row["training loss"].bold
    assert row["epochs to fedrep's loss"].text == "3.0"
    gains = methods_grid(comparison)
    line = cells(gains, method="fedgradnorm", **{"measured on": "training loss"})
    expected = [((0.1 / (0.6 + s / 100)) - 0.3 / (30 + s / 100)) / 2 * 100 for s in range(3)]
    assert line["Δm against fedrep"].numbers[""] == pytest.approx(sum(expected) / 3)
    assert line["worst task"].text == "value"
    assert line["its gain"].numbers[""] == pytest.approx(-1.0, abs=0.01)
    assert line["Δm against local"].numbers[""] > 0
    assert line["MB sent"].numbers[""] == pytest.approx(0.008)
    assert line["seconds"].text == "2.0"
    held_out = cells(gains, method="fedrep", **{"measured on": "held-out metric"})
    assert held_out["Δm against fedrep"].text == "-"


def test_a_gain_relative_to_nothing_is_not_written_out(monkeypatch):
    monkeypatch.setitem(LOSSES, "local", (1e-6, 30.0))
    runs = [run(method, seed) for seed in range(3) for method in LOSSES]
    grid = methods_grid(comparison_of(runs))
    line = cells(grid, method="fedgradnorm", **{"measured on": "training loss"})
    assert line["Δm against local"].text == "< -1000 %"
    assert line["Δm against local"].numbers[""] < -1000
    assert bare(line["Δm against local"]).text == "< -1000"
    assert any("next to nothing" in note for note in grid.notes)
    assert not any(
        "next to nothing" in note
        for note in methods_grid(comparison_of([run("fedrep", 0), run("fedgradnorm", 0)])).notes
    )


def test_p_values_are_paired_and_holms():
    runs = [run(method, seed) for seed in range(4) for method in ("fedrep", "fedgradnorm")]
    for number, one in enumerate(runs):
        for row in one.rows[-4:]:
            row["loss"] += 0.03 * math.sin(5 * number + (row["client"] == "value"))
    comparison = comparison_of(runs)
    contest = comparison.against(comparison.arms[1], "fedrep")
    raw = []
    for task in comparison.tasks:
        ours, theirs = ([s.tasks[task].loss for s in arm.samples.values()]
                        for arm in (comparison.arms[1], comparison.arms[0]))  # fmt: skip
        raw.append(scipy.stats.ttest_rel(ours, theirs).pvalue)
    low, high = sorted(raw)
    corrected = {low: min(1, 2 * low), high: max(min(1, 2 * low), high)}
    found = contest.p_values(LOSS)
    assert list(found.values()) == pytest.approx([corrected[p] for p in raw], rel=1e-6)
    assert set(contest.p_values(SCORE)) == set(comparison.tasks)
    assert "Holm" in " ".join(tasks_grid(comparison).notes)


def test_one_seed_says_so():
    comparison = comparison_of([run("fedrep"), run("fedgradnorm")])
    grid = tasks_grid(comparison)
    assert not any(title.startswith("p (") for title in grid.columns)
    assert "one seed: no intervals and no tests" in grid.notes
    assert "±" not in to_markdown(grid)


def test_a_loss_is_shown_without_its_factor():
    plain, scaled = sample_of(run()), sample_of(run(scale=1000.0))
    assert scaled.tasks["value"].loss == pytest.approx(plain.tasks["value"].loss)
    assert scaled.tasks["value"].score == plain.tasks["value"].score


def test_a_sweep_stands_side_by_side_and_is_compared_at_the_same_point(tmp_path):
    runs = [
        run(method, seed, point={"data.loss_scale.value": c}, scale=c)
        for c in (100.0, 1.0)
        for seed in range(2)
        for method in ("fedrep", "fedgradnorm")
    ]
    runs += [run("local", seed) for seed in range(2)]
    comparison = comparison_of(runs)
    loss, score, gains = shown_grids(comparison)
    assert loss.columns == ("task", "method", "1", "100")
    local = cells(loss, task="value", method="local")
    assert local["1"].numbers[""] == pytest.approx(40.005)
    assert local["1"] == local["100"]
    assert cells(score, method="local", task="value (MAE)")["100"].numbers
    line = cells(gains, method="fedgradnorm", **{"measured on": "training loss"})
    assert line["1"].text == line["100"].text != "-"
    assert [path.name for path in draw(comparison, tmp_path)] == [
        "sweep-loss.png", "sweep-held-out.png",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("points", "joined"),
    [([{"gamma": 0.5}, {"gamma": 1.5}], True), ([{"a": 1, "b": 1}, {"a": 1, "b": 2}], False)],
)
def test_only_points_on_a_real_axis_are_joined_by_a_line(tmp_path, monkeypatch, points, joined):
    drawn = []
    monkeypatch.setattr(figures_sweep, "save", lambda drawing, path: drawn.append(drawing) or path)
    methods = ("fedrep", "fedgradnorm")
    runs = [run(m, seed, point=p) for p in points for seed in range(2) for m in methods]
    figures_sweep.sweep_figure(comparison_of(runs), tmp_path / "sweep.png", LOSS)
    for panel in drawn[0].axes:
        assert len(panel.lines) == len(methods)
        assert all((line.get_linestyle() != "None") == joined for line in panel.lines)
        assert joined or all(bars.has_yerr for bars in panel.containers)
        first, second = (list(line.get_xdata()) for line in panel.lines)
        assert (first == second) == joined  # side by side, or on their value


def test_unfinished_runs_count_only_where_there_are_no_others():
    stopped = run("fedgradnorm", 1, finished=False)
    del stopped.rows[8:]
    comparison = comparison_of([run("fedrep"), run("fedrep", 1), run("fedgradnorm"), stopped])
    arm = comparison.arms[1]
    assert list(arm.samples) == [0]
    notes = " ".join(comparison.notes)
    assert "fedgradnorm-seed1: not finished, epoch 1.0 (round 10 of 40) reached" in notes
    assert "fedgradnorm: no finished run of seed 1" in notes
    alone = comparison_of([run("fedrep"), stopped])
    assert alone.arms[1].label == "fedgradnorm (unfinished)"


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
    comparison = read_comparison([tmp_path, tmp_path / "nothing"])
    assert [arm.method for arm in comparison.arms] == ["fedrep", "fedgradnorm"]
    notes = " ".join(comparison.notes)
    assert "run.json is damaged" in notes
    assert "nothing is no run folder" in notes
    all_grids(comparison)
    with pytest.raises(RunFolderError, match="no run of the baseline 'other'"):
        read_comparison([tmp_path], "other")
    empty = StoredRun("empty", "fedrep", 0, [])
    with pytest.raises(RunFolderError, match="no run there holds an evaluation"):
        comparison_of([empty])


def test_a_diverged_run_is_shown_as_such():
    broken = run("fedgradnorm")
    for row in broken.rows[-4:]:
        row["loss"] = math.nan
    comparison = comparison_of([run("fedrep"), broken])
    assert cells(tasks_grid(comparison), task="value", method="fedgradnorm")[
        "training loss"
    ].text == "nan"  # fmt: skip
    methods_grid(comparison)


def test_the_papers_numbers_stand_beside_its_table_and_not_beside_variants():
    more = {"name": "table2", "data": {"source": "mtfl"}}
    runs = [run("fedrep", name="gender"), run("fedgradnorm", name="gender"),
            run("fedgradnorm", name="gender", own={"weighting.lr": 0.008})]  # fmt: skip
    runs = [StoredRun(r.name, r.method, r.seed, r.rows, r.manifest, {**r.config, **more})
            for r in runs]  # fmt: skip
    grid = tasks_grid(comparison_of(runs))
    row = cells(grid, task="gender", method="fedgradnorm")
    assert row["paper's loss"].text == "0.56"
    variant = cells(grid, task="gender", method="fedgradnorm weighting.lr=0.008")
    assert variant["paper's loss"].text == "-"


def test_variants_stand_beside_their_method_and_are_no_sweep(tmp_path):
    steps = [{"weighting.lr": "schedule"}, {"weighting.lr": 0.016}, {"weighting.lr": 0.008}, {},
             {"weighting.lr": {"nested": 1.0}}]  # fmt: skip
    runs = [run("fedgradnorm", seed, own=own) for own in steps for seed in (0, 1)]
    runs += [run(method, seed) for method in ("fedgradnorm-direct", "fedrep") for seed in (0, 1)]
    comparison = comparison_of(runs, "fedgradnorm")
    assert comparison.points == []
    assert [arm.label for arm in comparison.arms] == [
        "fedgradnorm", "fedgradnorm weighting.lr=0.008", "fedgradnorm weighting.lr=0.016",
        "fedgradnorm weighting.lr=schedule", "fedgradnorm weighting.lr={'nested': 1.0}",
        "fedgradnorm-direct", "fedrep",
    ]  # fmt: skip
    for arm in comparison.arms[1:]:
        contest = comparison.against(arm, "fedgradnorm")
        assert contest is not None
        assert contest.seeds == [0, 1]
    assert draw(comparison, tmp_path) == [tmp_path / "curves.png"]


def test_a_baseline_with_settings_of_its_own_is_still_one():
    runs = [run("fedrep", seed, own={"lr": lr}) for seed in (0, 1) for lr in (0.2, 0.1)]
    runs += [run("fedgradnorm", seed, own={"lr": 0.2}) for seed in (0, 1)]
    comparison = comparison_of([*runs, *(run("local", seed) for seed in (0, 1))])
    assert comparison.points == []
    for arm in comparison.arms[1:]:  # one yardstick for all: the first variant
        contest = comparison.against(arm, "fedrep")
        assert contest is not None
        assert contest.pairs["value"][0][1] is comparison.arms[0].tasks("value")[0]


def test_a_variant_beside_a_sweep_leaves_the_sweep_as_it_is():
    runs = [run("fedgradnorm", point={"weighting.lr": lr}) for lr in (0.1, 0.2)]
    runs += [run("fedgradnorm"), run("fedgradnorm", own={"weighting.gamma": 0.5}), run("fedrep")]
    comparison = comparison_of(runs)
    assert [point["weighting.lr"] for point in comparison.points] == [0.1, 0.2]
    assert [arm and arm.name for arm in comparison.along("fedgradnorm")] == [
        "fedgradnorm lr=0.1", "fedgradnorm lr=0.2",
    ]  # fmt: skip


def test_synthetic_data_is_said_on_the_figure(tmp_path):
    one = run()
    for data, says in (({"source": "radcom"}, "generated signals"),
                       ({"source": "radcom", "path": "x.hdf5"}, ""),
                       ({"source": "faces"}, "drawn faces")):  # fmt: skip
        made = StoredRun("a", "fedrep", 0, one.rows, one.manifest, {**one.config, "data": data})
        comparison = comparison_of([made])
        assert says in comparison.synthetic
        assert bool(comparison.synthetic) == bool(says)
    assert draw(comparison, tmp_path) == [tmp_path / "curves.png"]
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


NASTY = r"a|b & 100% $x_1$ {y} ~^\ <b>[i]*#"


@pytest.fixture
def nasty():
    row = (Cell(NASTY), Cell("1.0 ± 0.1", {"": 1.0, "_ci95": 0.1}, bold=True))
    return Grid("n", NASTY, ("name", "value"), ((row, row),), (NASTY,))


@pytest.mark.parametrize("terminal", [False, True])
def test_a_wide_table_keeps_its_last_column(monkeypatch, terminal):
    shown = Console(file=io.StringIO(), width=40, force_terminal=terminal)
    monkeypatch.setattr(output, "out", shown)
    row = (Cell("x" * 2 * output.FILE_WIDTH), Cell("the end"))
    output.say(to_terminal(Grid("n", "wide", ("name", "value"), ((row,),))))
    assert "the end" in shown.file.getvalue()


def test_names_are_text_in_every_form(nasty):
    console = Console(file=io.StringIO(), width=120)
    console.print(to_terminal(nasty))
    assert NASTY in console.file.getvalue()
    rows = list(csv.DictReader(io.StringIO(to_csv(nasty))))
    assert rows[0] == {"name": NASTY, "value": "1.0", "value_ci95": "0.1"}
    lines = to_markdown(nasty).splitlines()
    assert lines[4].startswith(r"| a\|b &amp; 100% $x\_1$ {y} \~^\\ &lt;b&gt;\[i\]\*# |")
    assert lines[4].endswith("| **1.0 ± 0.1** |")
    tex = to_latex(nasty)
    escaped = (
        r"a\textbar{}b \& 100\% \$x\_1\$ \{y\} \textasciitilde{}\textasciicircum{}"
        r"\textbackslash{} \textless{}b\textgreater{}[i]*\#"
    )
    assert escaped + r" & \textbf{1.0 $\pm$ 0.1} \\" in tex
    assert tex.count("{") == tex.count("}")
