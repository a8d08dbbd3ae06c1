"""Figures for files: the page's panels, drawn by matplotlib."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._extras import needed
from fedgradnorm._report.colours import (
    COLOURS,
    ON_DARK,
    STROKES,
    TASKS,
    TASKS_ON_DARK,
    Look,
    looks,
)
from fedgradnorm._report.frame import MANY, Report
from fedgradnorm._report.panels import SWEEP, Panel, axis_of, sections, sweep_section
from fedgradnorm._report.words import in_words, labels_of
from fedgradnorm._runs.checkpoint import write_atomically

FORMATS = ("png", "pdf", "svg")
WIDTH = 6.6
"""Inches: as wide as our pages show a figure, so that type is as large as it is drawn."""

TYPE = 8
"""Points; no text in a figure is smaller."""

DPI = 200

SIZES: Any = ("axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize",
         "legend.fontsize", "figure.labelsize", "figure.titlesize")  # fmt: skip
INKS = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
PAPERS = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
COLUMNS, NARROW = 5, 3  # panels in a row: of curves, and of a sweep, whose axis has more names
ROW = 1.2  # inches
CHARACTERS = 15  # of the smallest type, in an inch
MARKERS = "osDP^vX*"

# Names of colours that matplotlib looks up in the style: a figure is drawn once, for either paper.
GREY = f"C{len(COLOURS) + len(TASKS)}"
PAPER = f"C{len(COLOURS) + len(TASKS) + 1}"
DARK = "-dark"
"""The end of the name of a figure that is drawn for dark pages."""

SHOWN = {"Loss": "train", "Accuracy or error": "heldout"}
"""The role that a view of the learning curves shows in a file, where it is recorded."""

NAMES = {
    "Loss": "training loss ↓", "Training loss": "training loss ↓", "Weight": "weight",
    "Accuracy or error": "held-out", "Held-out metric": "held-out",
}  # fmt: skip


def draw(report: Report, folder: Path, ends: Sequence[str] = (".png", ".pdf")) -> list[Path]:
    """The figure of a comparison in files whose names have these ends; the first file.

    A column per task: of a sweep, the ends of training against what was varied; else the curves of
    loss, held-out metric and weight. Lines are means over seeds, bands the range they span.
    """
    name = "sweep" if report.points else "curves"
    return [panels_figure(report, folder / f"{name}{end}") for end in ends][:1]


def panels_figure(report: Report, path: str | Path) -> Path:
    """Panels of the page on one sheet, with at most ``MANY`` lines each."""
    path = Path(path)
    check_format(path)
    names = report.lines[:MANY] if report.points else report.standouts()[:MANY]
    named = looks(names)
    columns, rows = NARROW if report.points else COLUMNS, []
    for section in [sweep_section(report)] if report.points else sections(report):
        values = (y for panel in section.panels for one in panel["series"] for y in one["y"])
        moved = any(y not in (1, None) for y in values)
        if section.id in (SWEEP, "curves") or (section.id == "weights" and moved):
            for view in section.views:
                panels = [panel for panel in section.panels if panel["view"] == view]
                wide = -(-len(panels) // -(-len(panels) // columns))  # rows of about equal length
                rows += [panels[cut : cut + wide] for cut in range(0, len(panels), wide)]
    if not rows:
        raise DataError("nothing to draw: the runs hold no rounds yet")
    width = max(map(len, rows))
    notes = ["↑ higher is better, ↓ lower is better"]
    if max(report.seeds.values(), default=1) > 1:
        notes.append(
            "bands and bars: 95% intervals over seeds"
            if report.points
            else "bands: lowest to highest seed"
        )
    if left := len(report.lines if report.points else report.variants) - len(names):
        notes.append(f"{left} other methods are in the tables")
    notes += [report.synthetic] if report.synthetic else []
    height = 1.0 + 0.08 * len(named) + (ROW + 0.35 * bool(report.points)) * len(rows)
    with figure(height, path) as drawing:
        grid = drawing.subplots(len(rows), width, squeeze=False)
        for line, panels, below in zip(grid, rows, [*rows[1:], []], strict=True):
            for column, (axes, panel) in enumerate(zip(line, panels, strict=False)):
                _panel(axes, report, panel, named, WIDTH / width)
                if column < len(below):  # the axis is the same
                    axes.tick_params(labelbottom=False)
                    axes.set_xlabel("")
            for axes in line[len(panels) :]:
                axes.set_visible(False)
            line[0].set_ylabel(NAMES[panels[0]["view"]])
        legend(drawing, grid.flat)
        return save(drawing, path, "; ".join(notes))


def _panel(
    axes: Any, report: Report, panel: Panel, named: Mapping[str, Look], inches: float
) -> None:
    roles = {one["role"] for one in panel["series"]}
    lines = [one for one in panel["series"] if one["role"] == SHOWN.get(panel["view"])]
    drawn = [
        (name, one)
        for one in (lines if lines or len(roles) > 1 else panel["series"])
        if (name := one.get("name") or report.variants[one["method"]]) in named
    ]
    labels = labels_of(named)
    for name, one in drawn:
        _line(axes, panel, one, labels[name], named[name], list(named).index(name) / len(named))
    if drawn and "range" in panel:
        # The first of many points is of an untrained network, far from all others.
        late = [{k: v[len(v) > MANY :] if k in ("y", "lo", "hi") else v for k, v in one.items()}
                for _, one in drawn]  # fmt: skip
        _scale(axes, axis_of(late, panel.get("reference"), panel["log"], panel["percent"]))
    task, unit = report.tasks[panel["task"]], panel["unit"]
    title = textwrap.wrap(task, int(inches * CHARACTERS))[:2]
    if unit not in ("", "loss"):
        higher = report.frame[report.frame.task == task].higher.iloc[0]
        title.append(f"{unit if unit == 'accuracy' else unit.upper()} {'↑' if higher else '↓'}")
    axes.set_title("\n".join(title))
    dress(axes)
    place = panel.get("x")
    if place is None:
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", nbins=3)
        return
    axes.set_xlabel(in_words(", ".join(report.points[0])))
    if not place["lines"]:
        axes.set_xticks(place["values"], place["names"], rotation=60)
    elif place["log"]:
        axes.set_xscale("log")
        values = place["values"][:: -(-len(place["values"]) // 4)]
        axes.set_xticks([float(v) for v in values], [f"{value:g}" for value in values])
        axes.minorticks_off()


def _line(
    axes: Any, panel: Panel, one: Mapping[str, Any], label: str, look: Look, share: float
) -> None:
    """A mean and its range; of one or two points only markers, since nothing lies between."""
    x, y = _numbers(one["x"]), _numbers(one["y"])
    low, high = (_numbers(one.get(key, one["y"])) for key in ("lo", "hi"))
    how: dict[str, Any] = {"color": look.name, "label": label, "zorder": 2}
    place = panel.get("x")
    if place and not place["lines"]:  # points without an order stand side by side
        axes.errorbar(x + 0.6 * (share - 0.5), y, (y - low, high - y), markersize=3, linewidth=1,
                      fmt=MARKERS[(look.colour + look.stroke) % len(MARKERS)], **how)  # fmt: skip
        return
    dashes = STROKES[look.stroke]
    style: Any = (0, tuple(part / 2 for part in dashes)) if dashes else "-"
    ends = len(x) <= 2 and place is None
    axes.plot(x, y, linestyle="none" if ends else style, linewidth=1.3, markersize=3,
              marker="o" if ends or place else None, **how)  # fmt: skip
    if "lo" in one and not ends:
        axes.fill_between(x, low, high, color=look.name, alpha=0.15, linewidth=0)


def _scale(axes: Any, axis: Mapping[str, Any]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = axis.get("range", (0.0, 1.0))
    if axis.get("reference") is not None:
        axes.axhline(axis["reference"], color=GREY, linewidth=0.8, zorder=0)
    if axis.get("log"):
        axes.set_yscale("log")
        low, high = 10**low, 10**high
        axes.yaxis.set_major_locator(FixedLocator([float(tick) for tick in axis["ticks"]]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.locator_params(axis="y", nbins=4)
        if axis.get("percent"):
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
    axes.set_ylim(low, high)


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


@contextmanager
def figure(height: float, path: Path) -> Iterator[Any]:
    """A figure that is ``WIDTH`` wide, with type of at least ``TYPE``; no global state changes."""
    with needed("report", "a figure"):
        from matplotlib import font_manager, rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.rcsetup import cycler
    there = {font.name for font in font_manager.fontManager.ttflist}
    wide = [
        name for name in ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Emoji") if name in there
    ]
    dark = path.stem.endswith(DARK)
    ink, grey, paper = ("#E8EAED", "#9A9A9A", "#131416") if dark else ("black", "#777777", "white")
    named = (*ON_DARK, *TASKS_ON_DARK) if dark else (*COLOURS, *TASKS)
    style: Any = {
        "font.family": ["DejaVu Sans", *wide, "sans-serif"], "font.sans-serif": ["DejaVu Sans"],
        "font.size": TYPE, "axes.titlepad": 4,
        "axes.prop_cycle": cycler(color=[*named, grey, paper]),
        "svg.fonttype": "none", "svg.hashsalt": "fedgradnorm",
        **dict.fromkeys(SIZES, "medium"), **dict.fromkeys(INKS, ink),
        **dict.fromkeys(PAPERS, paper),
    }  # fmt: skip
    with rc_context(style):
        drawing = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(drawing)
        yield drawing


def save(drawing: Any, path: Path, note: str = "") -> Path:
    """Write the figure whole or not at all, in the format of its name, with a note under it."""
    if note:
        lines = textwrap.fill(note, int(WIDTH * CHARACTERS))
        drawing.supxlabel(lines, x=0.995, ha="right", color=GREY)
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # a name in a script that no font here has is drawn as boxes
        warnings.filterwarnings("ignore", message=".*[Gg]lyph .* missing from.*font")
        kind = check_format(path)
        # Drawn again, an SVG is the same file.
        drawing.savefig(
            buffer, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else {}
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def check_format(path: Path) -> str:
    """The picture format that the file's ending names."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        endings = ", ".join(f".{name}" for name in FORMATS)
        raise ConfigError(f"{path}: a figure's name must end in one of {endings}")
    return kind


def dress(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def legend(part: Any, panels: Sequence[Any]) -> None:
    """One legend for all panels, with as many names in a row as fit."""
    pairs = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels)
    handles = {name: handle for panel in pairs for handle, name in panel if name[0] != "_"}
    sizes = [len(name) + 9 for name in handles]  # with its line, and a gap
    for columns in range(len(sizes), 0, -1):
        if sum(max(part) for part in np.array_split(sizes, columns)) <= WIDTH * CHARACTERS:
            break
    part.legend(handles.values(), handles, loc="outside upper center", ncols=columns,
                frameon=False, handlelength=2.5)  # fmt: skip
