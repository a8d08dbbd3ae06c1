"""The benefit over training alone: by method and data set, and by the examples of a client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgradnorm._errors import DataError
from fedgradnorm._report.benefit_gains import ENDS, Gains
from fedgradnorm._report.colours import Look, looks
from fedgradnorm._report.figures.curves import check_format, noted, save
from fedgradnorm._stored.generated import synthetic

_MARKERS = {"shared": "o", "tuned": "s", "chosen": "D"}
_LINE, _PANEL = 0.26, 3.1


def _short(word: str) -> str:
    """A setting after a method's name, without the table it is in."""
    key, equals, value = word.partition("=")
    return f"{key.rpartition('.')[2]}{equals}{value}" if equals else word


def benefit_figure(found: Sequence[Gains], path: str | Path) -> Path:
    """Above, every arm's mean gain by data set; below, the best arm's clients by their rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    check_format(path)
    if not found:
        raise DataError("nothing to draw: no run has one of training alone beside it")
    data = list(dict.fromkeys(one.data for one in found))
    arms = list(dict.fromkeys(one.arm.label for one in found))
    height = 1.2 + _LINE * len(arms)
    drawing = Figure(figsize=(2.6 + _PANEL * len(data), height + 3.4), layout="constrained")
    FigureCanvasAgg(drawing)
    parts: Any = drawing.subfigures(2, 1, height_ratios=(height, 3.2))
    upper, lower = parts
    panels = upper.subplots(1, len(data), sharey=True, squeeze=False)[0]
    colours = looks(arms)
    for axes, name in zip(panels, data, strict=True):
        _forest(axes, [one for one in found if one.data == name], arms, colours)
        axes.set_title(name, fontsize=11, weight="bold")
    names = [" ".join(_short(word) for word in arm.split()) for arm in arms]
    panels[0].set_yticks(range(len(arms)), names, fontsize=8)
    panels[0].invert_yaxis()
    handles = {
        end: h for axes in panels for h, end in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    upper.legend(handles.values(), handles, loc="outside upper center", ncols=3, frameon=False)
    _by_rows(lower.subplots(), found)
    noted(drawing, synthetic([run for one in found for run in one.arm.group.whole]))
    return save(drawing, path)


def _forest(
    axes: Any, found: Sequence[Gains], arms: Sequence[str], colours: dict[str, Look]
) -> None:
    """Mean gains with their intervals, a line per arm."""
    for one in found:
        place = arms.index(one.arm.label) + 0.22 * (ENDS.index(one.end) - 1)
        value, colour = one.mean, colours[one.arm.label].hex
        axes.errorbar(
            value.mean, place, xerr=value.half if value.half == value.half else None, color=colour,
            fmt=_MARKERS[one.end], markersize=4, linewidth=1,
            markerfacecolor="white" if one.end == "chosen" else colour,
        )  # fmt: skip
    for end in dict.fromkeys(one.end for one in found):
        axes.plot([], [], _MARKERS[end], color="0.3", label=end,
                  markerfacecolor="white" if end == "chosen" else "0.3")  # fmt: skip
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_xlabel("benefit over training alone, %")
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _by_rows(axes: Any, found: Sequence[Gains]) -> None:
    """A point per client of each data set's best arm: its rows, and its mean gain over seeds."""
    from matplotlib import colormaps

    best: dict[str, Gains] = {}
    for one in found:
        if one.data not in best or one.mean.mean > best[one.data].mean.mean:
            best[one.data] = one
    for number, one in enumerate(best.values()):
        x = [one.size(name) for name in one.clients]
        y = [fmean(values) for values in one.clients.values()]
        axes.plot(x, y, ".", color=colormaps["tab10"](number % 10), alpha=0.55,
                  label=f"{one.data}: {one.arm.label}, {one.end}")  # fmt: skip
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=10)  # one client may gain ten times what the others do
    axes.yaxis.set_major_formatter("{x:g}")
    for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        ticks("{x:g}")
    axes.set_xlabel("training rows of the client")
    axes.set_ylabel("benefit over training alone, %")
    axes.set_title("Each client, under its data set's best arm", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
