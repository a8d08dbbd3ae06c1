"""Figures for files: formats, names, many variants, and no global state."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from PIL import Image

from fedgradnorm import ConfigError, DataError
from fedgradnorm._report import figures
from fedgradnorm._report.colours import COLOURS
from fedgradnorm._report.figures import DARK, TYPE, WIDTH, draw, panels_figure
from fedgradnorm._report.frame import MANY, read_report, report_of
from report.made_runs import many, run
from report.run_folders import write_run
from studies import benefit, methods
from studies.benefit import ENDS, Gains, benefit_figure
from studies.methods import methods_figure


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    kept, saved = [], figures.save

    def keep(drawing, path, note=""):
        kept.append(drawing)
        return saved(drawing, path, note)

    for module in (figures, methods, benefit):
        monkeypatch.setattr(module, "save", keep)
    return kept


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_formats(tmp_path, ending, magic):
    path = panels_figure(report_of([run()]), tmp_path / "deep" / f"figure.{ending}")
    assert path.read_bytes().startswith(magic)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_every_method_has_its_colour_and_nothing_is_blank(tmp_path):
    names = ("fedrep", "fedgradnorm", "fedgradnorm-direct")
    report = report_of([run(name, gain=i / 10) for i, name in enumerate(names)])
    path = panels_figure(report, tmp_path / "f.png")
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    for colour in COLOURS[:3]:
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(pixels - wanted).sum(axis=2) < 12).sum() > 100


def test_names_in_any_script_are_drawn_without_a_warning(tmp_path):
    for method in ("fedrep", "fedgradnorm"):
        write_run(tmp_path / "runs", method, tasks={"性別 😀": "accuracy", "b": "mae"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw(read_report([tmp_path / "runs"]), tmp_path)


@pytest.mark.parametrize("count", [2, 9, 12])
def test_of_many_methods_some_are_drawn(tmp_path, drawn, count):
    report = report_of(many(count, 1))
    made = draw(report, tmp_path)
    assert [path.name for path in made] == ["curves.png"]
    (legend,) = drawn[0].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert sorted(texts) == sorted(report.standouts())
    assert len(texts) <= MANY
    left = f"{count - MANY} other methods"
    assert (left in drawn[0].get_supxlabel()) == (count > MANY)
    titles = [axes.get_title() for axes in drawn[0].axes]
    per_row = [f"{task}\naccuracy ↑" for task in report.tasks]
    assert titles == [*per_row, *report.tasks, *report.tasks]  # held out, training loss, weights
    colours = {line.get_color() for line in drawn[0].axes[0].lines if line.get_label() in texts}
    assert len(colours) == len(texts)


def test_type_is_never_smaller_than_eight_points_at_the_width_of_a_page(tmp_path, drawn):
    long = tuple("a client with a name of many words " * 3 + str(n) for n in range(7))
    reports = [report_of(many(12, 2, clients=long))]
    for point in ({"data.loss_scale.a": 1e-3}, {"precision": "tf32"}):
        runs = [run("fedrep", seed, point={k: v}) for seed in range(2)
                for k, old in point.items() for v in (old, old * 2)]  # fmt: skip
        reports.append(report_of(runs))
    for report in reports:
        panels_figure(report, tmp_path / "f.png")
    for name in ("methods-mtfl", "methods-radcom"):
        methods_figure(report_of(many(12, 2, name=name)), tmp_path / "methods.png")
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 1.0]})
    gains = [
        Gains(data, f"fedrep heads={data}", "fedrep", end, "%", table, {})
        for data in "abcde"
        for end in ENDS
    ]
    benefit_figure(gains, tmp_path / "benefit.png")
    assert len(drawn) == 6
    for one in drawn:
        assert one.get_figwidth() == WIDTH
        sizes = {text.get_fontsize() for text in one.findobj(Text) if text.get_text()}
        assert sizes == {TYPE}
        assert "=" not in " ".join(text.get_text() for text in one.findobj(Text))
    assert TYPE >= 8


def test_published_figures_have_the_width_that_makes_their_type_readable():
    found = sorted((Path(__file__).parents[2] / "docs" / "results").glob("*/*.svg"))
    assert found
    for path in found:
        text = path.read_text(encoding="utf-8")
        width = re.search(r'viewBox="0 0 (\S+) ', text)
        assert width, path
        assert float(width[1]) == pytest.approx(72 * WIDTH), path
        assert set(re.findall(r"font-size: ([^;]+);", text)) == {f"{TYPE}px"}, path
        assert len(text) < 300_000, path
        light = path.with_name(path.name.replace(DARK, ""))
        assert {light, light.with_stem(light.stem + DARK)} <= {*found}


def test_a_dark_figure_is_the_same_in_other_colours_and_drawing_again_changes_nothing(tmp_path):
    report = report_of(many(12, 2))
    for folder in ("once", "again"):
        for end in (".svg", f"{DARK}.svg"):
            panels_figure(report, tmp_path / folder / f"f{end}")
            methods_figure(report, tmp_path / folder / f"m{end}")
    once, again = (
        {path.name: path.read_text() for path in (tmp_path / folder).iterdir()}
        for folder in ("once", "again")
    )
    assert once == again
    for name in ("f", "m"):
        light, dark = once[f"{name}.svg"], once[f"{name}{DARK}.svg"]
        words, colours = r"<text[^>]*>([^<]*)</text>", r"#[0-9a-f]{6}\b"
        assert re.findall(words, light) == re.findall(words, dark) != []
        shared = {*re.findall(colours, light)} & {*re.findall(colours, dark)}
        assert shared <= {"#b0b0b0"}  # the grid, faint on both


@pytest.mark.parametrize(
    ("points", "joined"),
    [([{"gamma": 0.5}, {"gamma": 1.5}], True), ([{"a": 1, "b": 1}, {"a": 1, "b": 2}], False)],
)
def test_only_points_on_a_real_axis_are_joined_by_a_line(tmp_path, drawn, points, joined):
    methods = ("fedrep", "fedgradnorm")
    runs = [run(m, seed, point=p) for p in points for seed in range(3) for m in methods]
    panels_figure(report_of(runs), tmp_path / "sweep.png")
    for panel in drawn[0].axes:
        first, second = (list(line.get_xdata()) for line in panel.lines)
        assert (first == second) == joined  # side by side, or on their value


@pytest.mark.parametrize(
    ("key", "title"),
    [("lr", "learning rate"), ("weighting.lr", "learning rate of the weights")],
)
def test_a_sweeps_axis_says_which_learning_rate_it_is(tmp_path, drawn, key, title):
    runs = [run("fedrep", seed, point={key: x}) for x in (0.1, 0.2) for seed in range(2)]
    panels_figure(report_of(runs), tmp_path / "sweep.png")
    assert title in {panel.get_xlabel() for panel in drawn[0].axes}


def test_bad_requests(tmp_path):
    report = report_of([run()])
    with pytest.raises(ConfigError, match=r"must end in one of \.png"):
        panels_figure(report, tmp_path / "f.gif")
    with pytest.raises(DataError, match="nothing to draw"):
        panels_figure(report_of([]), tmp_path / "f.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        panels_figure(report, tmp_path / "file" / "f.png")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


DRAWS = """
import sys
from pathlib import Path
from fedgradnorm._report.figures import panels_figure
from fedgradnorm._report.frame import read_report

panels_figure(read_report([Path(sys.argv[1])]), Path(sys.argv[2]))
assert "matplotlib.pyplot" not in sys.modules
"""


def test_no_global_plotting_state(tmp_path: Path):
    """In a process of its own: a library that another test uses may load pyplot."""
    folder = write_run(tmp_path)
    subprocess.run([sys.executable, "-c", DRAWS, folder, tmp_path / "f.png"], check=True)
    assert (tmp_path / "f.png").exists()
