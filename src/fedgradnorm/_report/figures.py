"""Figures for files: curves and sweeps."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._extras import needed
from fedgradnorm._report.colours import STROKES, TASKS, Look, looks
from fedgradnorm._report.curves import Band, Curves, curves_of
from fedgradnorm._report.frame import Report
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm.experiments._statistics import Estimate, estimate
from fedgradnorm.experiments._sweep import key_name, value_name

FORMATS = ("png", "pdf", "svg")
LEGEND = 4  # names in a row of a legend
ROW = 6  # panels in a row
FAINT = "#C4C4C4"
MARKERS = "osDP^vX*"
DECADES = 100  # a range of numbers wider than this factor is drawn on a logarithmic axis
SMALL = 0.05  # weights below this are drawn on a logarithmic axis


def draw(report: Report, folder: Path) -> list[Path]:
    """The figures of a comparison as PNG and PDF; the PNG files."""
    made = []
    for ending in ("png", "pdf"):
        if report.points:
            made.append(sweep_figure(report, folder / f"sweep-loss.{ending}", "loss"))
            made.append(sweep_figure(report, folder / f"sweep-held-out.{ending}", "score"))
            continue
        made.append(curves_figure(report, folder / f"curves.{ending}"))
    return [path for path in made if path.suffix == ".png"]


def curves_figure(report: Report, path: str | Path) -> Path:
    """A column per task: training loss, and held-out accuracy if every task has one.

    Below, a panel for each named variant whose weights move. Lines are means over seeds, bands the
    range they span. Of many variants only some are named; the others are thin grey lines.
    """
    path = Path(path)
    check_format(path)
    curves = {name: curves_of(one) for name, one in report.groups.items()}
    tasks = report.tasks
    if not tasks:
        raise DataError("nothing to draw: the runs hold no rounds yet")
    rows = [("train", "loss", "training loss")]
    if set(report.frame.metric) == {"accuracy"} and set(report.frame.split) <= {"test"}:
        rows.append(("test", "accuracy", "test accuracy"))
    named = report.standouts()
    moving = [name for name in named if _moves(curves[name], tasks)]
    below = math.ceil(len(moving) / ROW)
    beside = math.ceil(len(moving) / below) if below else 0
    legend = 0.4 + 0.24 * math.ceil((len(named) + 1) / LEGEND)
    upper, lower = 2.4 * len(rows) + legend, 2.1 * below + 0.5
    width = max(2.7 * max(len(tasks), 3), 1.95 * beside + 1.2)
    drawing = figure(width, upper + (lower if below else 0))
    parts = drawing.subfigures(
        2 if below else 1, 1, squeeze=False, height_ratios=[upper, lower] if below else [1]
    )
    panels = parts[0, 0].subplots(len(rows), len(tasks), sharex=True, squeeze=False)
    for line, (split, column, label) in zip(panels, rows, strict=True):
        for axes, task in zip(line, tasks, strict=True):
            _curves(axes, curves, named, (task, split, column))
            if split == "train":
                axes.set_title(task, fontsize=12, weight="bold")
        line[0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("epoch")
    one_legend(parts[0, 0], panels.flat)
    if below:
        _weights(parts[1, 0], {name: curves[name] for name in moving}, tasks, below, beside)
    return save(drawing, path, report.synthetic)


def _curves(
    axes: Any, curves: Mapping[str, Curves], named: Sequence[str], key: tuple[str, str, str]
) -> None:
    known = looks(named)
    others = [name for name in curves if name not in named]
    bands = {name: one.band(key) for name, one in curves.items()}
    for name in (*named, *others):
        found = bands[name]
        if found is None:
            continue
        if name in known:
            _line(axes, found, name, known[name].hex, style_of(known[name]))
        else:
            label = f"{len(others)} other{'s' * (len(others) > 1)}" if name == others[0] else "_"
            axes.plot(found.epoch, found.mean, color=FAINT, linewidth=0.9, zorder=1, label=label)
    values = [v for name in named if (found := bands[name]) is not None for v in found.mean]
    values += [found.mean[-1] for found in bands.values() if found is not None]
    values = [value for value in values if math.isfinite(value)]
    dress(axes)
    if not values:
        return
    low, high = min(values), max(values)
    if key[2] == "loss" and low > 0:
        if others:  # one that diverged must not flatten the rest
            axes.set_ylim(low / (high / low) ** 0.06, high * (high / low) ** 0.06)
        log_scale(axes)


def _line(axes: Any, found: Band, label: str, colour: str, style: Any) -> None:
    """A mean and its range; of one or two points only markers, since nothing lies between."""
    ends = len(found.epoch) <= 2
    axes.plot(
        found.epoch, found.mean, color=colour, linestyle="none" if ends else style, linewidth=2,
        marker="o" if ends else None, markersize=5, label=label, zorder=2,
    )  # fmt: skip
    if found.seeds > 1 and not ends:
        axes.fill_between(found.epoch, found.low, found.high, color=colour, alpha=0.18, linewidth=0)


def _moves(curves: Curves, tasks: Sequence[str]) -> bool:
    found = [curves.band((task, "batch", "weight")) for task in tasks]
    values = np.concatenate([one.mean for one in found if one is not None] or [np.ones(1)])
    return not np.allclose(values, values[0])


def _weights(
    part: Any, curves: Mapping[str, Curves], tasks: Sequence[str], rows: int, columns: int
) -> None:
    """A panel per variant, a colour per task, all on one scale."""
    panels = part.subplots(rows, columns, sharey=True, squeeze=False)
    used = list(panels.flat)[: len(curves)]
    low, high = math.inf, 1.0
    for axes, (name, one) in zip(used, curves.items(), strict=True):
        for number, task in enumerate(tasks):
            found = one.band((task, "batch", "weight"))
            if found is not None:
                _line(axes, found, task, TASKS[number % len(TASKS)], "-")
                low = min(low, float(np.nanmin(found.mean)))
                high = max(high, float(np.nanmax(found.mean)))
        axes.axhline(1.0, color="#999999", linewidth=0.8, zorder=0)
        axes.set_title(name.replace(" ", "\n"), fontsize=10)
        axes.set_xlabel("epoch")
        dress(axes)
    for axes in list(panels.flat)[len(curves) :]:
        axes.set_visible(False)
    for axes in used:
        if 0 < low < SMALL:
            axes.set_ylim(max(low / 1.3, 1e-3), high * 1.3)
            log_scale(axes)
        else:
            axes.set_ylim(bottom=0)
    for axes in panels[:, 0]:
        axes.set_ylabel("weight")
    handles, names = used[0].get_legend_handles_labels()
    part.legend(handles, names, loc="outside right center", frameon=False)


def sweep_figure(report: Report, path: str | Path, measure: str) -> Path:
    """A panel per task: the end of training against what was varied, with 95% intervals.

    A single numeric key is a real axis, logarithmic over two decades and more. Other points are
    placed side by side, without lines between them.
    """
    path = Path(path)
    check_format(path)
    if not report.points:
        raise DataError("nothing to draw: the runs are not of a sweep")
    places, real = places_of(report)
    drawing = figure(2.7 * len(report.tasks) + 0.6, 3.4)
    panels = drawing.subplots(1, len(report.tasks), squeeze=False)[0]
    for axes, task in zip(panels, report.tasks, strict=True):
        for number, (line, look) in enumerate(looks(report.lines).items()):
            x, found = sweep_ends(report, line, task, measure)
            if not found:
                continue
            mean = np.array([one.mean for one in found])
            half = np.array([0.0 if math.isnan(one.half) else one.half for one in found])
            if real:
                _line(axes, Band(np.array(x), mean, mean - half, mean + half, 2), line, look.hex,
                      style_of(look))  # fmt: skip
            else:
                aside = 0.6 * ((number + 0.5) / len(report.lines) - 0.5)
                marker = MARKERS[(look.colour + look.stroke) % len(MARKERS)]
                axes.errorbar(np.array(x) + aside, mean, half, color=look.hex, fmt=marker,
                              markersize=4, linewidth=1.2, label=line)  # fmt: skip
        if real and min(places) > 0 and max(places) / min(places) >= DECADES:
            axes.set_xscale("log")
        elif not real:
            names = [value_name(point) for point in report.points]
            axes.set_xticks(places, names, rotation=45, ha="right", fontsize=8)
        axes.set_title(task, fontsize=12, weight="bold")
        axes.set_xlabel(key_name(report.points[0]))
        dress(axes)
        if measure == "loss" and any((line.get_ydata() > 0).any() for line in axes.lines):
            log_scale(axes)
    panels[0].set_ylabel("training loss at the end" if measure == "loss" else "held-out metric")
    one_legend(drawing, panels)
    return save(drawing, path, report.synthetic)


def places_of(report: Report) -> tuple[list[float], bool]:
    """Where the points of a sweep stand on an axis, and whether that is their own value."""
    values = [list(point.values()) for point in report.points]
    plain = all(len(v) == 1 and type(v[0]) in (int, float) for v in values)
    if plain and len({tuple(point) for point in report.points}) == 1:
        return [float(v[0]) for v in values], True
    return [float(i) for i in range(len(values))], False


def sweep_ends(
    report: Report, line: str, task: str, measure: str
) -> tuple[list[float], list[Estimate]]:
    """Places on the axis and estimates there, of the points at which this line has the measure."""
    mine = report.frame[(report.frame.task == task) & (report.frame.line == line)]
    if measure == "score":
        mine = mine[mine.split != "train"]
    values = {name: estimate(list(part)) for name, part in mine.groupby("variant")[measure]}
    along = zip(places_of(report)[0], report.along(line), strict=True)
    found = [(place, values[name]) for place, name in along if name in values]
    return [place for place, _ in found], [value for _, value in found]


def figure(width: float, height: float) -> Any:
    """A figure that needs no global state of matplotlib's, with the fonts that the machine has."""
    with needed("report", "a figure"):
        from matplotlib import font_manager, rcParams
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    there = {font.name for font in font_manager.fontManager.ttflist}
    wide = [
        name for name in ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Emoji") if name in there
    ]
    rcParams["font.family"] = ["DejaVu Sans", *wide]
    drawing = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def save(drawing: Any, path: Path, note: str = "") -> Path:
    """Write the figure whole or not at all, in the format of its name, with a note under it."""
    if note:
        drawing.supxlabel(note, x=0.995, ha="right", fontsize=8, color="#555555")
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # a name in a script that no font here has is drawn as boxes
        warnings.filterwarnings("ignore", message=".*[Gg]lyph .* missing from.*font")
        drawing.savefig(buffer, format=check_format(path), dpi=130)
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


def style_of(look: Look) -> Any:
    """The dashes of a look, in matplotlib's units."""
    dashes = STROKES[look.stroke]
    return (0, tuple(part / 2 for part in dashes)) if dashes else "-"


def log_scale(axes: Any) -> None:
    """A logarithmic axis with a few plain numbers on it, whatever the range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = np.log10(high / low)
    steps = (1, 1.5, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2.5 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def dress(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def one_legend(part: Any, panels: Sequence[Any]) -> None:
    """One legend for all panels."""
    pairs = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels)
    handles = {name: handle for panel in pairs for handle, name in panel if name[0] != "_"}
    part.legend(handles.values(), handles, loc="outside upper center", ncols=LEGEND, frameon=False,
                handlelength=3)  # fmt: skip
