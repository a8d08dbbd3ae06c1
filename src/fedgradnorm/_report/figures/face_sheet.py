"""A contact sheet of faces: every landmark drawn on its face, the labels below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

_COLUMNS = 8
_CELL, _GAP, _HEAD = 1.45, 0.05, 0.4  # inches
_COLOURS = ("#00e5ff", "#00e5ff", "#ffd400", "#ff4d6d", "#ff4d6d")  # eyes, nose, mouth corners


def face_sheet(
    images: NDArray[Any],
    landmarks: NDArray[Any] | None,
    labels: Mapping[str, Sequence[str]],
    path: Path,
    title: str,
) -> Path:
    """Draw ``images`` ([n, 1, h, w] or [n, h, w]) as a grid and write it to ``path``.

    ``landmarks`` are rows x1..x5, y1..y5 in pixels, the first covering 0 .. 1; ``labels`` has
    a text per face and name. A landmark outside its face is drawn at the nearest edge, as a cross.
    """
    faces = np.asarray(images).reshape(len(images), *np.shape(images)[-2:])
    brightest = (
        255 if faces.dtype == np.uint8 else 1
    )  # one scale for all: light is part of the data
    columns = max(1, min(_COLUMNS, len(faces)))
    rows = max(1, math.ceil(len(faces) / columns))
    captions = _captions(labels, len(faces))
    below = 0.13 * max((text.count("\n") + 1 for text in captions), default=0) + 0.14
    width, height = columns * _CELL, rows * (_CELL + below) + _HEAD
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, y=1 - 0.4 * _HEAD / height, va="center")
    for index, face in enumerate(faces):
        row, column = divmod(index, columns)
        left, top = column * _CELL + _GAP, _HEAD + row * (_CELL + below)
        side = _CELL - 2 * _GAP
        axes = figure.add_axes(
            (left / width, 1 - (top + side) / height, side / width, side / height)
        )
        axes.axis("off")
        high, wide = face.shape
        axes.imshow(face, cmap="gray", extent=(0, wide, high, 0), vmin=0, vmax=brightest)
        axes.text(0.5, -0.04, captions[index], transform=axes.transAxes, fontsize=7, ha="center",
                  va="top")  # fmt: skip
        if landmarks is not None:
            _draw_points(axes, np.asarray(landmarks[index], dtype=float), wide, high)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _captions(labels: Mapping[str, Sequence[str]], faces: int) -> list[str]:
    """Two labels a line, so that a caption is no wider than its face."""
    texts = [[column[index] for column in labels.values()] for index in range(faces)]
    return ["\n".join(", ".join(t[i : i + 2]) for i in range(0, len(t), 2)) for t in texts]


def _draw_points(axes: Any, points: NDArray[np.float64], width: int, height: int) -> None:
    x, y = np.split(points, 2)
    shown_x, shown_y = np.clip(x, 0, width), np.clip(y, 0, height)
    inside = (shown_x == x) & (shown_y == y)
    colours = np.array([_COLOURS[index % len(_COLOURS)] for index in range(len(x))])
    for mask, marker in ((inside, "o"), (~inside, "x")):
        axes.scatter(
            shown_x[mask], shown_y[mask], s=11, c=colours[mask], marker=marker, linewidths=1,
            clip_on=False,
        )  # fmt: skip
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
