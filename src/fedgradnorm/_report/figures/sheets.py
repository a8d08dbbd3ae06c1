"""A picture of what a data source holds, by the source's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._client import Client

if TYPE_CHECKING:
    from numpy.typing import NDArray

FACES = 40
SIGNALS = 18_000  # a hundred windows for each waveform and SNR

Options = Mapping[str, Any]


def contact_sheet(
    source: str, options: Options, clients: Sequence[Client], seed: int, path: Path
) -> Path | None:
    """Draw some of the source's rows to ``path``; None if they are neither signals nor images."""
    draw = _SHEETS.get(source, _own_images)
    return draw({"seed": seed, **options}, clients, path)


def _signals(options: Options, _: Sequence[Client], path: Path) -> Path:
    from fedgradnorm._report.figures.signal_sheet import signal_sheet
    from fedgradnorm.data import radcom

    if options.get("path"):
        data = radcom.prepare(options["path"], on_bad=options.get("on_bad", "error"))
    else:
        # More windows than this would not be seen, and drawing them takes long.
        samples = min(options.get("samples", SIGNALS), SIGNALS)
        data = radcom.generate(samples, options["seed"])
    return signal_sheet(data, path)


def _drawn_faces(options: Options, _: Sequence[Client], path: Path) -> Path:
    from fedgradnorm.data import faces

    some = faces.generate(min(FACES, options.get("samples", FACES)), options["seed"])
    return _faces(some.columns(), faces.CLASSES, path, "Drawn faces (synthetic)")


def _mtfl_faces(options: Options, _: Sequence[Client], path: Path) -> Path:
    from fedgradnorm.data import mtfl

    names = ("boxes", "crop", "drop_outside", "on_bad", "cache")
    data = mtfl.prepare(options.get("path"), **{n: options[n] for n in names if n in options})
    # Spread over the file, which is ordered by where the pictures come from.
    rows = np.linspace(0, len(data.train) - 1, min(FACES, len(data.train))).astype(int)
    columns = {name: array[rows] for name, array in data.train.columns().items()}
    return _faces(columns, mtfl.CLASSES, path, "MTFL training faces")


def _faces(
    columns: Mapping[str, NDArray[Any]],
    classes: Mapping[str, Sequence[str]],
    path: Path,
    title: str,
) -> Path:
    from fedgradnorm._report.figures.face_sheet import face_sheet

    images = columns["images"]
    labels = {
        name: [texts[label] for label in columns[name][: len(images)]]
        for name, texts in classes.items()
    }
    return face_sheet(images, columns["landmark"], labels, path, title)


def _own_images(_: Options, clients: Sequence[Client], path: Path) -> Path | None:
    from fedgradnorm._report.figures.face_sheet import face_sheet

    x = np.asarray(clients[0].train[0][:FACES])
    if x.ndim != 4:
        return None
    # Standardised pixels go below 0 and above 1: stretch what is shown, and show colours as grey.
    grey = x.mean(axis=1)
    spread = float(np.ptp(grey)) or 1.0
    return face_sheet((grey - grey.min()) / spread, None, {}, path, f"Client {clients[0].name}")


_SHEETS: dict[str, Callable[[Options, Sequence[Client], Path], Path | None]] = {
    "radcom": _signals,
    "faces": _drawn_faces,
    "mtfl": _mtfl_faces,
}
