"""Points of a curve, each measured in a process of its own, and a figure of two panels of them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import record

Draw = Callable[[Sequence[record.Row], Path], None]


def options(description: str) -> argparse.ArgumentParser:
    """The options of every script, and those of points."""
    parser = record.options(description)
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what is there")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    return parser


def begin(
    given: argparse.Namespace, target: Path, point: Callable[[], record.Row], draw: Draw
) -> bool:
    """Measure one point, or draw what is in ``target``, if that is asked for: then no more is."""
    record.begin(given)
    if given.point:
        print(json.dumps(point()))
    elif given.draw:
        draw(json.loads(target.read_text())["rows"], target.with_suffix(".png"))
    return bool(given.point or given.draw)


def apart(script: str, given: argparse.Namespace, point: int, *more: str) -> record.Row:
    """A point of ``script``, measured in a process of its own, so that peaks are its own."""
    words = [sys.executable, script, "--point", str(point), *more]
    words += ["--threads", str(given.threads)] if given.threads else []
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def panels() -> tuple[Any, Any, Any]:
    """A figure with two panels side by side, and both of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9.2, 3.7), layout="constrained")
    FigureCanvasAgg(drawing)
    left, right = drawing.subplots(1, 2)
    return drawing, left, right


def dress(axes: Any, title: str, unit: str, over: str = "clients") -> None:
    """Title, units and a logarithmic axis of numbers of clients."""
    axes.set_xscale("log")
    axes.set_title(title, fontsize=12, weight="bold")
    axes.set_xlabel(over)
    axes.set_ylabel(unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
