"""The Multi-Task Facial Landmark set (Zhang et al., ECCV 2014) as 40x40 grey faces and clients.

Landmarks keep the files' column order: x1..x5, y1..y5, for left eye, right eye, nose, left and
right mouth corner, left being the picture's. Labels count from zero; ``CLASSES`` names them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._client import Client
from fedgradnorm._errors import DataError, choose
from fedgradnorm.data._allocation import Allocation, check_enough, task_sizes
from fedgradnorm.data._bad_rows import BadRows, OnBad, tell_dropped
from fedgradnorm.data._cache import cached, fingerprint
from fedgradnorm.data._paths import user_path
from fedgradnorm.data.faces._face_clients import face_clients
from fedgradnorm.data.mtfl._annotations import CLASSES, parse_annotations, parse_boxes
from fedgradnorm.data.mtfl._crops import Crops, crop_faces
from fedgradnorm.data.mtfl._mtfl_source import (
    ANNOTATIONS,
    OWN_BOXES,
    Found,
    Source,
    find_boxes,
    find_source,
    open_source,
    read_boxes,
)

__all__ = [
    "CLASSES",
    "MTFL",
    "SIZE",
    "TASKS",
    "Found",
    "Split",
    "clients",
    "find_source",
    "prepare",
]

logger = logging.getLogger(__name__)

SIZE = 40
"""Pixels of a face's side."""
TASKS = ("landmark", *CLASSES)
"""The paper's five tasks, in the order of the clients."""

Crop = Literal["boxes", "whole"]
Unit = Literal["pixels", "unit"]
Progress = Callable[[int, int], None]

_VERSION = 1  # raise it when the same files and options give other arrays


@dataclass(frozen=True)
class Split:
    """The official training or test rows that could be used, in file order.

    ``images`` is uint8 [n, 1, 40, 40]; ``landmarks`` float32 [n, 10]; labels int64 [n], from zero;
    ``rows`` are line numbers in the annotation file, from one, and ``paths`` what they name.
    """

    images: NDArray[np.uint8]
    landmarks: NDArray[np.float32]
    gender: NDArray[np.int64]
    smile: NDArray[np.int64]
    glasses: NDArray[np.int64]
    pose: NDArray[np.int64]
    paths: NDArray[np.str_]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The images, and the targets by task."""
        labels = {name: getattr(self, name) for name in CLASSES}
        return {"images": self.images, "landmark": self.landmarks, **labels}


@dataclass(frozen=True)
class MTFL:
    """Both splits, and ``info``: rows used and left out, why, and the seconds it took to build.

    ``fresh`` says whether this call decoded the pictures or found them in the cache ``folder``.
    """

    train: Split
    test: Split
    info: dict[str, Any]
    fresh: bool
    folder: Path


def prepare(
    source: str | Path | None = None,
    *,
    boxes: str | Path | None = None,
    crop: str = "boxes",
    landmarks: Unit = "pixels",
    drop_outside: bool = False,
    on_bad: OnBad = "error",
    cache: Path | None = None,
    progress: Progress | None = None,
) -> MTFL:
    """Read, crop and shrink every face once; later calls take it from the cache.

    ``source`` is MTFL.zip or its unpacked folder (default: :func:`find_source`). ``crop="boxes"``
    takes face boxes from a CSV (default: mtfl_boxes.csv next to the source, else the package's own)
    and leaves out pictures without one; ``drop_outside`` also leaves out faces with a landmark
    outside its box. ``landmarks`` are in pixels of the crop (0 .. 40) or in [0, 1] ("unit").
    ``on_bad="drop"`` leaves out bad rows, counts and lists them in ``info``; "error" stops at the
    first.
    """
    choose(crop, ("boxes", "whole"), "crop")
    choose(landmarks, ("pixels", "unit"), "landmarks")
    choose(on_bad, ("error", "drop"), "on_bad")
    path = user_path(source, "mtfl: source") if source is not None else find_source().source
    box_file = _box_file(path, boxes) if crop == "boxes" else None
    with open_source(path) as files:
        key = {
            "version": _VERSION,
            "source": files.fingerprint(),
            "boxes": fingerprint(box_file) if box_file else None,
            "drop_outside": drop_outside and crop == "boxes",
            "on_bad": on_bad,
            "size": SIZE,
        }
        prepared = cached(
            "mtfl", key, lambda: _build(files, box_file, drop_outside, BadRows(on_bad), progress),
            folder=cache,
        )  # fmt: skip
    info = prepared.info
    tell_dropped(info["bad"], path)
    for split, counts in info["rows"].items():
        logger.info("MTFL %s: %s (%s)", split, counts, "decoded" if prepared.fresh else "cached")
    # Kept once, in [0, 1]: the same cache serves both units.
    scale = np.float32(SIZE if landmarks == "pixels" else 1)
    train, test = (_split(prepared.arrays, split, scale) for split in ANNOTATIONS)
    return MTFL(train, test, info, prepared.fresh, prepared.folder)


def clients(
    *,
    source: str | Path | None = None,
    boxes: str | Path | None = None,
    crop: Crop = "boxes",
    landmarks: Unit = "pixels",
    allocation: Allocation = "balanced",
    clients_per_task: int = 1,
    rows: int | None = None,
    validation_share: float = 0.0,
    seed: int = 0,
    loss_scale: Mapping[str, float] | None = None,
    tasks: Sequence[str] = TASKS,
    drop_outside: bool = False,
    on_bad: OnBad = "error",
    cache: Path | None = None,
    progress: Progress | None = None,
) -> list[Client]:
    """The paper's five clients: landmark (10 numbers), gender, smile, glasses (2) and pose (5).

    ``allocation`` is "balanced" (2000 rows each), "imbalanced" (3000, 500, 3000, 500, 3000), or
    sizes by task or in the order of ``tasks``; the rows are disjoint and chosen by ``seed``. Where
    rows are too few (9,983 remain with boxes) the last client is smaller, which is logged.
    ``clients_per_task`` clients (``gender-0``, ``gender-1``, ...) share a task's rows, or have
    ``rows`` each. ``validation_share`` of each client's rows is held out; everyone gets the
    official test split, and clients of a task hold the same tensors of it.

    Args:
        source: the MTFL archive or folder. In a config: path.
        boxes: a CSV file of face boxes; by default mtfl_boxes.csv next to the source, else the
            package's own.
        crop: faces cut out by "boxes", or the "whole" picture.
        landmarks: in "pixels" of the crop, or in the "unit" square.
        allocation: "balanced", "imbalanced", or sizes by task or in the order of ``tasks``.
        clients_per_task: how many clients share a task.
        rows: training rows of each client; None deals out all there are.
        validation_share: part of a client's rows that is held out, from 0 to 1.
        seed: decides which rows go where; the run's own unless given.
        loss_scale: a factor on a task's loss, by the task's name.
        tasks: one client each, or clients_per_task of them.
        drop_outside: leave out faces with a landmark outside the crop.
        on_bad: "error" stops at a row that cannot be used, "drop" leaves it out.
        cache: folder of the prepared arrays; the user's cache folder by default.
        progress: called with (done, total) now and then; not for configs.
    """
    sizes = task_sizes(allocation, tasks, TASKS, clients_per_task, rows)
    data = prepare(
        source, boxes=boxes, crop=crop, landmarks=landmarks, drop_outside=drop_outside,
        on_bad=on_bad, cache=cache, progress=progress,
    )  # fmt: skip
    if rows is not None:
        check_enough(sizes, clients_per_task, len(data.train))
    return face_clients(
        data.train.columns(), data.test.columns(), CLASSES, sizes,
        tasks=tasks, validation_share=validation_share, seed=seed, loss_scale=loss_scale,
        clients_per_task=clients_per_task,
    )  # fmt: skip


def _box_file(source: Path, boxes: str | Path | None) -> Path:
    """The given CSV, else the one next to the source, else the package's own boxes."""
    found = user_path(boxes, "mtfl: boxes") if boxes is not None else find_boxes(source)
    if found is None:
        logger.warning(
            "%s: no mtfl_boxes.csv next to it, so faces are cut out by the package's own boxes, "
            "which are not those of the published runs", source,
        )  # fmt: skip
    return found or OWN_BOXES


def _build(
    files: Source,
    box_file: Path | None,
    drop_outside: bool,
    bad: BadRows[str],
    progress: Progress | None,
) -> tuple[dict[str, NDArray[Any]], dict[str, object]]:
    """Decode both splits; what comes back is what the cache keeps."""
    start = time.perf_counter()
    tables = {
        split: parse_annotations(_text(files, name), name, bad)
        for split, name in ANNOTATIONS.items()
    }
    boxes = parse_boxes(read_boxes(box_file), box_file.name, bad) if box_file else None
    total = sum(len(table.paths) for table in tables.values())
    arrays: dict[str, NDArray[Any]] = {}
    rows: dict[str, dict[str, int]] = {}
    done = 0
    for split, table in tables.items():
        crops = Crops(ANNOTATIONS[split], files.read, boxes, drop_outside, SIZE)
        base = done
        step = (lambda n, base=base: progress(base + n, total)) if progress else None
        made, rows[split] = crop_faces(crops, table, bad, step)
        arrays |= {f"{split}_{name}": array for name, array in made.items()}
        done += len(table.paths)
    seconds = round(time.perf_counter() - start, 3)
    about = {"boxes": box_file.name if box_file else None, "seconds": seconds}
    return arrays, {"rows": rows, "bad": bad.messages, **about}


def _text(files: Source, name: str) -> bytes:
    try:
        return files.read(name)
    except ValueError as error:
        raise DataError(f"{name}: {error}; use the complete archive") from error


def _split(arrays: Mapping[str, NDArray[Any]], split: str, scale: np.float32) -> Split:
    labels = arrays[f"{split}_labels"]
    return Split(
        images=arrays[f"{split}_images"],
        landmarks=np.asarray(arrays[f"{split}_landmarks"] * scale),
        paths=arrays[f"{split}_paths"],
        rows=arrays[f"{split}_rows"],
        **{name: np.array(labels[:, column]) for column, name in enumerate(CLASSES)},
    )
