"""Losses and weights of every task over the epochs, a colour per method."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._report.colours import Look, looks
from fedgradnorm._report.record import Record
from fedgradnorm._runs.checkpoint import write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Style = str | tuple[int, tuple[int, ...]]
"""A line style as matplotlib takes it."""

FORMATS = ("png", "pdf", "svg")
STYLES = ("-", "--", "-.", ":")  # they say again, on paper without colour, what colours say
MORE_STYLES = ((0, (8, 3)), (0, (5, 1, 1, 1, 1, 1)))  # for a colour's fifth and sixth stroke
ENDS = 2  # of so few points nobody knows what lies between them
LEGEND = 4  # names beside each other in a legend
POINTS = 400  # a curve of weights is drawn through at most so many rounds


def figure(runs: Sequence[Record], path: str | Path, note: str = "") -> Path:
    """Draw ``runs`` to ``path`` (PNG, PDF or SVG by its ending): a column per task.

    Above, the loss over the task's training rows; below, its weight. Runs of one label are seeds:
    their mean is drawn over the range they span. ``note`` is written under the figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    check_format(path)
    if not any(record.rows for record in runs):
        raise DataError("nothing to draw: the runs hold no rounds yet")
    tasks = list(dict.fromkeys(name for record in runs for name in record.clients))
    labels = list(dict.fromkeys(record.label for record in runs))
    size = (1.2 + 2.9 * len(tasks), 5.6 + legend_height(len(labels)))
    drawing = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(drawing)
    panels = drawing.subplots(2, len(tasks), sharex="col", squeeze=False)
    for column, task in enumerate(tasks):
        above, below = panels[:, column]
        for label, look in method_lines(labels).items():
            mine = [record for record in runs if record.label == label]
            curve(above, [r.series(task, "train", "loss") for r in mine], label, look)
            curve(below, [r.series(task, "batch", "weight") for r in mine], label, look)
        _dress(above, below, task, first=column == 0)
    handles, names = panels[0, 0].get_legend_handles_labels()
    drawing.legend(handles, names, loc="outside upper center", ncols=min(LEGEND, len(labels)),
                   frameon=False, fontsize=11)  # fmt: skip
    noted(drawing, note)
    return save(drawing, path)


def noted(drawing: Any, note: str) -> None:
    """Write a word about the data under a figure, where there is one to say."""
    if note:
        drawing.supxlabel(note, x=0.995, ha="right", fontsize=8, color="#555555")


def save(drawing: Any, path: Path) -> Path:
    """Write the figure whole or not at all, in the format its name asks for."""
    buffer = io.BytesIO()
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


def legend_height(names: int) -> float:
    """Inches that a legend of so many names takes beyond its first two lines."""
    return 0.24 * max(0, math.ceil(names / LEGEND) - 2)


def method_lines(labels: Sequence[str]) -> dict[str, tuple[str, Style]]:
    """Each method's colour and line style."""
    return {name: (look.hex, style_of(look)) for name, look in looks(labels).items()}


def style_of(look: Look) -> Style:
    """The dashes of a look."""
    if look.stroke < len(STYLES):
        return STYLES[(look.colour + look.stroke) % len(STYLES)]
    return MORE_STYLES[(look.stroke - len(STYLES)) % len(MORE_STYLES)]


def curve(
    axes: Any,
    runs: list[tuple[list[float], list[float]]],
    label: str,
    look: tuple[str, Style],
    width: float = 2,
    *,
    behind: bool = False,
) -> None:
    """The mean of the runs over the range they span, as far as all of them got.

    ``behind`` all others, it is without the range. Nothing is known between two ends: they are
    markers without a line.
    """
    length = min(len(epochs) for epochs, _ in runs)
    if length == 0:
        return
    picked = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))
    epochs: Floats = np.asarray(runs[0][0][:length])[picked]
    values: Floats = np.asarray([values[:length] for _, values in runs])[:, picked]
    colour, style = look
    mean = values.mean(axis=0)
    ends = length <= ENDS
    axes.plot(epochs, mean, color=colour, linestyle="none" if ends else style, linewidth=width,
              marker="o" if ends else None, markersize=3 + width, label=label,
              zorder=1 if behind else 2)  # fmt: skip
    if len(runs) > 1 and not behind and not ends:
        axes.fill_between(
            epochs, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.18, linewidth=0
        )


def log_scale(axes: Any) -> None:
    """A logarithmic axis with plain numbers on it, a few whatever the range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = np.log10(high / low)
    steps = (1, 1.5, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2.5 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _dress(above: Any, below: Any, task: str, *, first: bool) -> None:
    above.set_title(task, fontsize=12, weight="bold")
    if above.lines and all((line.get_ydata() > 0).all() for line in above.lines):
        log_scale(above)
    below.axhline(1.0, color="#999999", linewidth=0.8, zorder=0)
    below.set_ylim(bottom=0)
    below.set_xlabel("epoch")
    if first:
        above.set_ylabel("training loss")
        below.set_ylabel("weight")
    for axes in (above, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
