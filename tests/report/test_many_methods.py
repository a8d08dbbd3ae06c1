"""Many methods: figures in which nothing collapses, tables in the order of gain."""

import math
import warnings

import numpy as np
import pytest
from PIL import Image

from fedgradnorm._methods import METHODS
from fedgradnorm._report.arms import SCORE
from fedgradnorm._report.colours import TASKS
from fedgradnorm._report.comparison import comparison_of
from fedgradnorm._report.figures import methods_glance as figures_methods
from fedgradnorm._report.figures import paper as figures_paper
from fedgradnorm._report.figures.comparison_figures import draw
from fedgradnorm._report.figures.curves import figure, method_lines
from fedgradnorm._report.figures.methods_glance import methods_figure
from fedgradnorm._report.figures.paper import paper_figure
from fedgradnorm._report.figures.weight_panels import weights_size
from fedgradnorm._report.grid import to_markdown
from fedgradnorm._report.ranking import MANY, SIGHTS, ranking, sight, standouts
from fedgradnorm._report.tables.comparison_grids import methods_grid, tasks_grid
from fedgradnorm._report.tables.side_by_side import side_grid
from fedgradnorm._stored.reader import StoredRun

ALL = len(METHODS)
CLIENTS = ("landmark", "gender", "smile", "glasses", "pose")


def run(method, seed=0, gain=0.0, clients=CLIENTS, first=None):
    """A run whose losses end ``gain`` below the baseline's, the first client's ``first`` below."""
    rows = []
    for epoch in range(4):
        for place, client in enumerate(clients):
            mine = first if first is not None and place == 0 else gain * (1 + place / 4)
            here = {"round": epoch, "epoch": float(epoch), "client": client}
            weight = 1.0 if method == "fedrep" else 1 + 0.2 * math.sin(epoch + place)
            if epoch:
                rows.append({**here, "split": "batch", "weight": weight, "loss": 1.0})
            loss = (10 - epoch) * (1 - mine * epoch / 3) + 0.1 * seed * (1 + gain)
            for split in ("train", "test"):
                rows.append({**here, "split": split, "weight": weight, "loss": loss, "mae": loss})
    manifest = {"finished": True, "rounds": 3, "seconds": 2.0}
    config = {"name": "test", "method": method, "seed": seed}
    return StoredRun(f"{method}-seed{seed}", method, seed, rows, manifest, config)


def many(count=ALL, seeds=2, **rest):
    """The first ``count`` methods, gaining from -20 % to +30 %, fedrep nothing."""
    names = ["fedrep", *(name for name in METHODS if name != "fedrep")][:count]
    spread = np.linspace(-0.2, 0.3, count)
    return [
        run(name, seed, 0.0 if name == "fedrep" else float(gain), **rest)
        for name, gain in zip(names, spread, strict=True)
        for seed in range(seeds)
    ]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, each laid out as its file was."""
    kept = []
    for module in (figures_paper, figures_methods):
        saved = module.save

        def keep(drawing, path, saved=saved):
            kept.append(drawing)
            return saved(drawing, path)

        monkeypatch.setattr(module, "save", keep)
    return kept


def check_sizes(drawing, width=0.6, height=0.6):
    inches = drawing.get_size_inches()
    for axes in drawing.axes:
        box = axes.get_position().transformed(axes.figure.transSubfigure).transformed(
            drawing.transFigure.inverted()
        )  # fmt: skip
        assert box.width * inches[0] > width
        assert box.height * inches[1] > height


@pytest.mark.parametrize(
    ("count", "clients"), [(2, CLIENTS), (7, CLIENTS[:3]), (9, CLIENTS[:1]), (ALL, CLIENTS)]
)
def test_nothing_collapses_or_warns(tmp_path, drawn, count, clients):
    comparison = comparison_of(many(count, clients=clients))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = draw(comparison, tmp_path)
    names = ["curves.png", "methods.png"] if count > MANY else ["curves.png"]
    assert [path.name for path in made] == names
    assert all((tmp_path / name).with_suffix(".pdf").exists() for name in names)
    for drawing in drawn:
        check_sizes(drawing)


def test_titles_of_weight_panels_do_not_touch(tmp_path, drawn):
    comparison = comparison_of(many(seeds=1, clients=CLIENTS[:3]))
    paper_figure(comparison.records, tmp_path / "f.png", coloured=standouts(comparison))
    shown = [axes for axes in drawn[0].axes if axes.get_title() in METHODS and axes.get_visible()]
    boxes = [axes.title.get_window_extent() for axes in shown]
    assert len(boxes) == len(METHODS) - 1
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


def test_rows_of_panels_are_full():
    assert weights_size(0) == (0.0, 0.0)
    assert weights_size(24)[1] == weights_size(19)[1] < weights_size(25)[1]
    assert weights_size(25)[0] < weights_size(24)[0]  # five rows of five


def test_a_few_are_named_and_the_rest_is_grey(tmp_path, drawn):
    comparison = comparison_of(many(12, 1))
    named = standouts(comparison)
    assert len(named) == MANY
    assert {"fedrep", "fedgradnorm", "fedgradnorm-direct"} <= set(named)
    assert ranking(comparison)[0].arm.label in named
    paper_figure(comparison.records, tmp_path / "f.png", coloured=named)
    (legend,) = drawn[0].subfigs[0].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [*named, f"{12 - MANY} others"]


def test_one_that_shot_up_does_not_flatten_the_others(tmp_path, drawn):
    runs = many(12, 1)
    for row in next(run for run in runs if run.method != "fedrep").rows:
        if row["epoch"] == 1.0:
            row["loss"] = 1e6
    comparison = comparison_of(runs, "fedrep")
    paper_figure(comparison.records, tmp_path / "f.png", coloured=["fedrep", "dwa"])
    assert drawn[0].axes[0].get_ylim()[1] < 20


def test_the_figure_of_a_report_makes_room_for_its_legend(tmp_path):
    heights = []
    for count in (4, 20):
        path = figure(comparison_of(many(count, 1)).records, tmp_path / f"{count}.png")
        with Image.open(path) as picture:
            heights.append(picture.height)
    assert heights[1] > heights[0] + 50


def test_no_two_methods_have_one_line():
    lines = method_lines(list(METHODS))
    assert len(set(lines.values())) == len(METHODS)


def test_ranks_are_by_gain_with_the_baseline_at_zero():
    broken = run("ditto")
    for row in broken.rows[-10:]:
        row["loss"] = math.nan
    ranks = ranking(
        comparison_of([run("fedrep"), run("dwa", gain=-0.1), run("uw", gain=0.1), broken])
    )
    assert [rank.arm.method for rank in ranks] == ["uw", "fedrep", "dwa", "ditto"]
    assert ranks[0].delta.mean == pytest.approx(15.0)
    assert ranks[0].gains["pose"] == pytest.approx(20.0)
    assert ranks[1].base


def test_what_servers_see():
    seen = {name: sight(name) for name in METHODS}
    assert set(seen.values()) == set(SIGHTS)
    assert seen["fedgradnorm-direct"] == "losses, norms"
    assert (seen["famo"], seen["graddrop"], seen["fedavg"]) == ("losses", "gradients", "sizes")
    assert sight("of my own") == ""


def test_the_glance_has_every_task_and_arrows_off_its_scale(tmp_path, drawn):
    runs = [*many(), run("mine", 0, 0.1, first=-20.0), run("mine", 1, 0.1, first=-20.0)]
    path = methods_figure(comparison_of(runs), tmp_path / "methods.png")
    seen, delta, gains = drawn[0].axes
    names = [text.get_text() for text in seen.get_yticklabels()]
    assert names[-1] == "mine"
    assert any(text.get_text() == "?" for text in seen.texts)
    arrows = [line for line in gains.lines if line.get_marker() == "<"]
    assert [line.get_ydata()[0] for line in arrows] == [len(names) - 1]
    assert gains.get_xlim()[0] > -200
    assert [text.get_text() for text in gains.texts] == ["\N{MINUS SIGN}1986"]
    assert sum(line.get_marker() == "D" for line in delta.lines) == len(names) - 1
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    for colour in TASKS[: len(CLIENTS)]:
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(pixels - wanted).sum(axis=2) < 60).sum() > 100


def test_the_glance_of_one_seed_of_many_tasks_and_of_a_diverged_run(tmp_path, drawn):
    clients = tuple(f"client {n}" for n in range(12))
    broken = run("mine", clients=clients)
    for row in broken.rows[-24:]:
        row["loss"] = math.nan
    methods_figure(comparison_of([*many(9, 1, clients=clients), broken]), tmp_path / "m.pdf")
    seen, delta, gains = drawn[0].axes
    assert gains.get_legend() is None
    assert "diverged" in [text.get_text() for text in delta.texts]
    assert "seeds" not in [text.get_text() for text in seen.get_xticklabels()]
    assert "interval" not in drawn[0].get_supxlabel()


def test_many_methods_are_sorted_in_the_tables():
    runs = many()
    comparison = comparison_of(runs[:-1])  # the last one lacks a seed
    grid = methods_grid(comparison)
    for group, order in zip(
        grid.groups, (ranking(comparison), ranking(comparison, SCORE)), strict=True
    ):
        assert [row[0].text for row in group] == [rank.arm.label for rank in order]
        deltas = [row[2].numbers.get("", 0.0) for row in group]
        assert deltas == sorted(deltas, reverse=True)
    titles = ("Δm against fedrep", "worst task", "its gain", "server sees", "seconds", "seeds")
    assert set(titles) <= set(grid.columns)
    last = [row for row in grid.rows if row[0].text == runs[-1].method]
    assert [row[grid.columns.index("seeds")].text for row in last] == ["1", "1"]
    text = to_markdown(grid)
    assert "over 1 to 2 seeds" in text
    assert "fedrep stands where zero is" in text
    names = [row[1].text for row in tasks_grid(comparison).groups[0]]
    assert names == [rank.arm.label for rank in ranking(comparison)]


def test_few_methods_stay_in_the_packages_order():
    grid = methods_grid(comparison_of(many(4)))
    assert grid.rows[0][0].text == "fedrep"
    assert not {"seeds", "server sees"} & set(grid.columns)


def test_two_sets_of_data_side_by_side():
    faces = comparison_of(many(9))
    signals = comparison_of(many(10, clients=("modulation", "signal"))[:-1])
    grid = side_grid({"mtfl": faces, "radcom": signals})
    assert [row[0].text for row in grid.rows][:9] == [rank.arm.method for rank in ranking(faces)]
    assert len(grid.rows) == 10
    for name, comparison in (("mtfl", faces), ("radcom", signals)):
        delta = grid.columns.index(f"{name}: Δm")
        for rank in ranking(comparison):
            row = next(row for row in grid.rows if row[0].text == rank.arm.method)
            if not rank.base:
                assert row[delta].numbers[""] == pytest.approx(rank.delta.mean)
    assert "mtfl: seeds" not in grid.columns
    missing = grid.rows[-1]
    assert missing[grid.columns.index("mtfl: Δm")].text == "-"
    assert missing[grid.columns.index("radcom: seeds")].text == "1"
    assert "radcom: against fedrep" in to_markdown(grid)
