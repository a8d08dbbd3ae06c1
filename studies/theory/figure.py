"""The figure of ``make theory``: a panel per claim that has curves."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._report.colours import COLOURS
from fedgradnorm._report.figures import check_format
from fedgradnorm._runs.checkpoint import write_atomically
from studies.theory.findings import Panel

COLUMNS = 3
LOOKS: dict[str, dict[str, Any]] = {
    "line": {"linestyle": "-", "linewidth": 1.8},
    "dashed": {"linestyle": "--", "linewidth": 1.4},
    "points": {"linestyle": "none", "marker": "o", "markersize": 7},
}


def theory_figure(panels: Sequence[Panel], path: str | Path) -> Path:
    """Draw ``panels`` to ``path`` (PNG, PDF or SVG by its ending), three in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    kind = check_format(path)
    rows = math.ceil(len(panels) / COLUMNS)
    drawing = Figure(figsize=(4.6 * COLUMNS, 3.7 * rows), layout="constrained")
    FigureCanvasAgg(drawing)
    places = drawing.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel)
    for axes in places[len(panels) :]:
        axes.axis("off")
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=kind, dpi=130)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def _draw(axes: Any, panel: Panel) -> None:
    """Curves without a label belong to the one before them and share its color."""
    colours = cycle(COLOURS)
    colour = COLOURS[0]
    for curve in panel.curves:
        colour = next(colours) if curve.label else colour
        axes.plot(curve.x, curve.y, color=colour, label=curve.label or None, **LOOKS[curve.style])
    axes.set_yscale("log")
    if panel.log_x:
        axes.set_xscale("log")
    axes.set_title(panel.title, fontsize=11, weight="bold")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.legend(fontsize=8, frameon=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
