"""Figures for files: the page's panels, drawn by matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._extras import needed
from fedgradnorm._report.colours import STROKES, Look, looks
from fedgradnorm._report.frame import Report
from fedgradnorm._report.panels import SWEEP, Panel, Section, axis_of, sections, sweep_section
from fedgradnorm._runs.checkpoint import write_atomically

FORMATS = ("png", "pdf", "svg")
LEGEND = 4  # names in a row of a legend
COLUMNS = 8  # panels in a row
FAINT = "#C4C4C4"
MARKERS = "osDP^vX*"

ROLES = {"Loss": "train", "Accuracy or error": "heldout"}
"""What a view of the learning curves shows in a file, where it is recorded."""


def draw(report: Report, folder: Path) -> list[Path]:
    """The figure of a comparison as PNG and PDF; the PNG file.

    A column per task: of a sweep, the ends of training against what was varied; else the curves of
    loss, held-out metric and weight. Lines are means over seeds, bands the range they span.
    """
    name = "sweep" if report.points else "curves"
    return [panels_figure(report, folder / f"{name}.{end}") for end in ("png", "pdf")][:1]


def panels_figure(report: Report, path: str | Path) -> Path:
    """Panels of the page on one sheet. Of many variants some are named, the others are grey."""
    path = Path(path)
    check_format(path)
    rows = []
    for section in [sweep_section(report)] if report.points else sections(report):
        if section.id in (SWEEP, "curves") or (section.id == "weights" and _moves(section)):
            for view in section.views:
                panels = [panel for panel in section.panels if panel["view"] == view]
                cuts = range(0, len(panels), COLUMNS)
                rows += [(view, panels[cut : cut + COLUMNS]) for cut in cuts]
    if not rows:
        raise DataError("nothing to draw: the runs hold no rounds yet")
    named = looks(report.lines if report.points else report.standouts())
    width = max(len(panels) for _, panels in rows)
    legend = 0.4 + 0.24 * -(-(len(named) + 1) // LEGEND)
    drawing = figure(2.6 * max(width, 3) + 0.4, 2.3 * len(rows) + legend)
    grid = drawing.subplots(len(rows), width, squeeze=False)
    for line, (view, panels) in zip(grid, rows, strict=True):
        for axes, panel in zip(line, panels, strict=False):
            _panel(axes, report, panel, named)
        for axes in line[len(panels) :]:
            axes.set_visible(False)
        line[0].set_ylabel("Training loss" if view == "Loss" else view)
    one_legend(drawing, grid.flat)
    return save(drawing, path, report.synthetic)


def _moves(section: Section) -> bool:
    """Whether any weight differs from 1."""
    return any(y not in (1, None) for p in section.panels for one in p["series"] for y in one["y"])


def _panel(axes: Any, report: Report, panel: Panel, named: Mapping[str, Look]) -> None:
    roles = {one["role"] for one in panel["series"]}
    role = ROLES.get(panel["view"], "")
    lines = [one for one in panel["series"] if one["role"] in ({role} & roles or roles)]
    others = [n for n in report.variants if n not in named]
    inside = []
    for one in lines:
        name = one.get("name") or report.variants[one["method"]]
        if name in named:
            inside.append(one)
            _line(axes, panel, one, name, named[name], list(named).index(name) / len(named))
            continue
        label = f"{len(others)} other{'s' * (len(others) > 1)}" if name == others[0] else "_"
        axes.plot(_numbers(one["x"]), _numbers(one["y"]), color=FAINT, linewidth=0.9, zorder=1,
                  label=label)  # fmt: skip
    # Another one that diverged must not flatten those that are named.
    if "range" in panel:
        _scale(
            axes, axis_of(inside or lines, panel.get("reference"), panel["log"], panel["percent"])
        )
    task, unit = report.tasks[panel["task"]], panel["unit"]
    metric = unit if unit in ("", "accuracy", "loss") else unit.upper()
    axes.set_title(task if metric in ("", "loss") else f"{task} ({metric})", fontsize=10)
    place = panel.get("x")
    axes.set_xlabel(place["title"] if place else "epoch")
    if place and place["log"]:
        axes.set_xscale("log")
    elif place and not place["lines"]:
        axes.set_xticks(place["values"], place["names"], rotation=45, ha="right", fontsize=8)
    dress(axes)


def _line(
    axes: Any, panel: Panel, one: Mapping[str, Any], name: str, look: Look, share: float
) -> None:
    """A mean and its range; of one or two points only markers, since nothing lies between."""
    x, y = _numbers(one["x"]), _numbers(one["y"])
    low, high = (_numbers(one.get(key, one["y"])) for key in ("lo", "hi"))
    how: dict[str, Any] = {"color": look.hex, "label": name, "zorder": 2}
    place = panel.get("x")
    if place and not place["lines"]:  # points without an order stand side by side
        axes.errorbar(x + 0.6 * (share - 0.5), y, (y - low, high - y), markersize=4, linewidth=1.2,
                      fmt=MARKERS[(look.colour + look.stroke) % len(MARKERS)], **how)  # fmt: skip
        return
    dashes = STROKES[look.stroke]
    style: Any = (0, tuple(part / 2 for part in dashes)) if dashes else "-"
    ends = len(x) <= 2 and place is None
    axes.plot(x, y, linestyle="none" if ends else style, linewidth=1.8, markersize=5,
              marker="o" if ends else None, **how)  # fmt: skip
    if "lo" in one and not ends:
        axes.fill_between(x, low, high, color=look.hex, alpha=0.18, linewidth=0)


def _scale(axes: Any, axis: Mapping[str, Any]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

    low, high = axis.get("range", (0.0, 1.0))
    if axis.get("reference") is not None:
        axes.axhline(axis["reference"], color="#999999", linewidth=0.8, zorder=0)
    if axis.get("log"):
        axes.set_yscale("log")
        low, high = 10**low, 10**high
        axes.yaxis.set_major_locator(FixedLocator(axis["ticks"]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    elif axis.get("percent"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(low, high)


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


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


def dress(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def one_legend(part: Any, panels: Sequence[Any]) -> None:
    pairs = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels)
    handles = {name: handle for panel in pairs for handle, name in panel if name[0] != "_"}
    part.legend(handles.values(), handles, loc="outside upper center", ncols=LEGEND, frameon=False,
                handlelength=3)  # fmt: skip
