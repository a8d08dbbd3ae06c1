"""The Multi-Task Facial Landmark set (Zhang et al., ECCV 2014) as 40x40 gray faces and clients.

Landmarks keep the files' column order: x1..x5, y1..y5, for left eye, right eye, nose, left and
right mouth corner, left being the picture's. Labels count from zero; ``CLASSES`` names them.
"""

from __future__ import annotations

import logging
import math
import os
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._checks import shown
from fedgradnorm._client import Client
from fedgradnorm._errors import DataError, choose
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._cache import cached, fingerprint
from fedgradnorm.data._face_clients import (
    Allocation,
    FaceSet,
    Progress,
    face_clients,
    task_sizes,
)
from fedgradnorm.data._files.images import Box, all_inside, crop_resize, decode_grey, to_crop
from fedgradnorm.data._files.tables import number_of, read_table
from fedgradnorm.data._paths import find_data, opened_zip, user_path
from fedgradnorm.data._source import Source

__all__ = ["clients"]

logger = logging.getLogger(__name__)

CLASSES: dict[str, tuple[str, ...]] = {
    "gender": ("male", "female"),
    "smile": ("smiling", "not smiling"),
    "glasses": ("glasses", "no glasses"),
    "pose": ("left profile", "left", "frontal", "right", "right profile"),
}
"""The label columns in file order, and what each class means (files count from 1, we from 0)."""
TASKS = ("landmark", *CLASSES)
"""The paper's five tasks, in the order of the clients."""
SIZE = 40
"""Pixels of a face's side."""

ANNOTATIONS = {"train": "training.txt", "test": "testing.txt"}
BOXES = "mtfl_boxes.csv"
OWN_BOXES = Path(__file__).with_name("mtfl_boxes.zip") / BOXES
"""The boxes of the published experiments; which detector made them was not recorded."""
FILE = "MTFL.zip"
AGAIN = "download the archive again"
NO_BOX, OUTSIDE = "without a box", "landmark outside the box"

_LARGEST = 64 << 20  # bytes of one file: MTFL's largest has 1 MB, an archive bomb's has more
_REPORT_EVERY = 100
_VERSION = 1  # raise it when the same files and options give other arrays

Crop = Literal["boxes", "whole"]
Unit = Literal["pixels", "unit"]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class MTFL:
    """The official training and test rows that could be used, in file order.

    ``info`` has the rows used and left out, why, and the seconds it took to build. ``fresh`` says
    whether this call decoded the pictures or found them in the cache ``folder``.
    """

    train: FaceSet
    test: FaceSet
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
    cache: Path | None = None,
    progress: Progress | None = None,
) -> MTFL:
    """Read, crop and shrink every face once; later calls take it from the cache.

    ``source`` is MTFL.zip (default: in the folder named by FEDGRADNORM_DATA). ``crop="boxes"``
    takes face boxes from a CSV (default: mtfl_boxes.csv next to the source, else the package's) and
    leaves out pictures without one; ``drop_outside`` also leaves out faces with a landmark outside
    its box. ``landmarks`` are in pixels of the crop (0 .. 40) or in [0, 1] ("unit").
    """
    choose(crop, ("boxes", "whole"), "crop")
    choose(landmarks, ("pixels", "unit"), "landmarks")
    path = find_data(source, (FILE,), "mtfl")
    box_file = None
    if crop == "boxes":
        beside = path.parent / BOXES
        box_file = user_path(boxes or (beside if beside.is_file() else OWN_BOXES), "mtfl: boxes")
    key = {
        "version": _VERSION,
        "source": fingerprint(path),
        # The package's own boxes are in an archive.
        "boxes": box_file and fingerprint(box_file.parent if box_file == OWN_BOXES else box_file),
        "drop_outside": drop_outside and crop == "boxes",
        "size": SIZE,
    }
    prepared = cached(
        "mtfl", key, lambda: _build(path, box_file, drop_outside, progress), folder=cache
    )
    info = prepared.info
    for split, counts in info["rows"].items():
        logger.info("MTFL %s: %s (%s)", split, counts, "decoded" if prepared.fresh else "cached")
    # Kept once, in [0, 1]: the same cache serves both units.
    scale, sets = np.float32(SIZE if landmarks == "pixels" else 1), list[FaceSet]()
    for split in ANNOTATIONS:
        images, points, labels, rows, paths = (
            prepared.arrays[f"{split}_{name}"]
            for name in ("images", "landmarks", "labels", "rows", "paths")
        )
        by_name = {name: np.array(labels[:, column]) for column, name in enumerate(CLASSES)}
        sets.append(FaceSet(images, np.asarray(points * scale), by_name, paths, rows))
    return MTFL(sets[0], sets[1], info, prepared.fresh, prepared.folder)


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
    cache: Path | None = None,
    progress: Progress | None = None,
) -> list[Client]:
    """The paper's five clients: landmark (10 numbers), gender, smile, glasses (2) and pose (5).

    Training rows are disjoint. Where they are too few (9,983 remain with boxes) the last client is
    smaller, which is logged. Everyone gets the official test split, and clients of a task hold the
    same tensors of it.

    Args:
        source: the archive MTFL.zip. In a config: path.
        boxes: a CSV file of face boxes; by default mtfl_boxes.csv next to the source, else the
            boxes of the published experiments, which are in the package.
        crop: faces cut out by "boxes", or the "whole" picture.
        landmarks: in "pixels" of the crop, or in the "unit" square.
        allocation: "balanced" (2000 each), "imbalanced" (3000, 500, 3000, 500, 3000), or sizes
            by task or in the order of ``tasks``.
        clients_per_task: how many clients (``gender-0``, ``gender-1``, ...) share a task.
        rows: training examples per client; by default all are divided among them.
        validation_share: the share of a client's examples to hold out, from 0 to 1.
        seed: draws splits and shares of examples; by default the seed of the run.
        loss_scale: a factor on a task's loss, by the task's name.
        tasks: the tasks; each has one client, or ``clients_per_task`` of them.
        drop_outside: leave out faces with a landmark outside the crop.
        cache: the folder for prepared arrays; by default the user's cache folder.
        progress: called with (done, total) now and then; not for configs.
    """
    sizes = task_sizes(allocation, tasks, TASKS, clients_per_task, rows)
    data = prepare(
        source, boxes=boxes, crop=crop, landmarks=landmarks, drop_outside=drop_outside,
        cache=cache, progress=progress,
    )  # fmt: skip
    return face_clients(
        data.train, data.test, CLASSES, sizes, exact=rows is not None,
        tasks=tasks, validation_share=validation_share, seed=seed, loss_scale=loss_scale,
        clients_per_task=clients_per_task,
    )  # fmt: skip


def _build(
    path: Path, box_file: Path | None, drop_outside: bool, progress: Progress | None
) -> tuple[Arrays, dict[str, object]]:
    """Decode both splits; what comes back is what the cache keeps."""
    start, arrays, rows, done = time.perf_counter(), Arrays(), dict[str, dict[str, int]](), 0
    with opened_zip(path) as archive:
        read = _reader(path, archive)
        tables = {}
        for split, name in ANNOTATIONS.items():
            try:
                tables[split] = parse_annotations(read(name), name)
            except ValueError as error:
                raise DataError(f"{name}: {error}; use the complete archive") from error
        boxes = parse_boxes(box_file) if box_file else None
        total = sum(len(table.paths) for table in tables.values())
        for split, table in tables.items():
            step = (lambda n, base=done: progress(base + n, total)) if progress else None
            made, rows[split] = _crop_faces(
                ANNOTATIONS[split], table, read, boxes, drop_outside, step
            )
            arrays |= {f"{split}_{name}": array for name, array in made.items()}
            done += len(table.paths)
    return arrays, {"rows": rows, "seconds": round(time.perf_counter() - start, 3)}


def _reader(path: Path, archive: zipfile.ZipFile) -> Callable[[str], bytes]:
    """Reads entries in memory, by their path next to ``training.txt``; nothing is ever extracted.

    A ValueError says why an entry cannot be read.
    """
    entries = {}
    for info in archive.infolist():
        try:
            entries[member_path(info.filename)] = info
        except ValueError as error:
            raise DataError(f"{path}: entry refused, {error}; use the official archive") from None
    wanted = ANNOTATIONS["train"]
    found = [name for name in entries if PurePosixPath(name).name == wanted]
    if not found:
        raise DataError(f"{path}: no {wanted} in the archive; is this MTFL.zip?")
    root = PurePosixPath(min(found, key=lambda name: (name.count("/"), name))).parent

    def read(name: str) -> bytes:
        info = entries.get(str(root / name))
        if info is None:
            raise ValueError(f"{name} is not in the archive")
        if info.file_size > _LARGEST:
            raise ValueError(f"{name} is {info.file_size} bytes unpacked, too large for this set")
        try:
            return archive.read(info)
        except Exception as error:  # zipfile and its decompressors raise many kinds of error
            raise ValueError(f"{name} cannot be read from the archive ({error})") from error

    return read


@dataclass(frozen=True)
class Annotations:
    """One annotation file: a line per image, in file order.

    ``landmarks`` are x1..x5, y1..y5 (left eye, right eye, nose, left and right mouth corner) in
    pixels of the original image; ``labels`` has a column per entry of ``CLASSES``, from zero.
    """

    paths: list[str]
    rows: NDArray[np.int64]
    landmarks: NDArray[np.float64]
    labels: NDArray[np.int64]


def parse_annotations(content: bytes, name: str) -> Annotations:
    """Read ``training.txt`` or ``testing.txt``: 15 fields a row, either slash, any line ending."""
    rows = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                rows.append((number, *_row(line)))
            except ValueError as error:
                raise DataError(f"{name}, row {number}: {error}; {AGAIN}") from error
    if not rows:
        raise DataError(f"{name}: no usable row; is this MTFL's annotation file?")
    numbers, paths, landmarks, labels = zip(*rows, strict=True)
    return Annotations(
        list(paths), np.array(numbers, np.int64), np.array(landmarks), np.array(labels, np.int64)
    )


def parse_boxes(path: Path) -> dict[str, Box]:
    """Read the CSV of face boxes (path, x0, y0, x1, y1 and, optionally, score).

    If an image has several boxes, the one with the highest score counts, and the first of equals.
    """
    bad: BadRows[int] = BadRows("drop", str(path))
    table, corners = read_table(path, None, bad), ("x0", "y0", "x1", "y1")
    if missing := [name for name in ("path", *corners) if name not in table.frame]:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; the first line must read "
            "path,x0,y0,x1,y1,score"
        )
    known = [name for name in (*corners, "score") if name in table.frame]
    numbers, names = {name: table[name] for name in known}, table["path"]
    best: dict[str, tuple[float, Box]] = {}
    for i in table.places.good().tolist():
        try:
            x0, y0, x1, y1, *score = (_number(cells[i], n) for n, cells in numbers.items())
            if x1 - x0 < 1 or y1 - y0 < 1:
                raise ValueError(
                    f"box ({x0:g}, {y0:g}, {x1:g}, {y1:g}) is less than one pixel wide or high"
                )
            image, found = member_path(names[i]), (score[0] if score else 0.0, (x0, y0, x1, y1))
        except ValueError as error:
            table.places.report(i, str(error))
            continue
        if image not in best or found[0] > best[image][0]:
            best[image] = found
    if bad.messages:
        raise DataError(f"{path}, {bad.messages[0]}; correct it, or remove the row")
    return {image: box for image, (_, box) in best.items()}


def member_path(text: str) -> str:
    """``text`` as a relative path with forward slashes; ValueError if it leaves its folder."""
    path = text.replace("\\", "/")
    parts = path.split("/")
    outside = path.startswith("/") or ".." in parts or ":" in parts[0]
    if outside:
        raise ValueError(f"path {shown(text)} points outside the data folder")
    if not path.isprintable():
        raise ValueError(f"path {shown(text)} is not a file name")
    kept = [part for part in parts if part not in ("", ".")]
    if not kept:
        raise ValueError(f"path {shown(text)} names no file")
    return "/".join(kept)


def _row(line: bytes) -> tuple[str, list[float], list[int]]:
    fields = line.split()
    if len(fields) != 15:
        raise ValueError(f"{len(fields)} fields, not 15")
    try:
        text = [field.decode() for field in fields]
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    points = [_number(value, "landmark") for value in text[1:11]]
    if points[0] == points[1] and points[5] == points[6]:
        raise ValueError("both eyes are the same point")
    for value, (column, classes) in zip(text[11:], CLASSES.items(), strict=True):
        if value not in map(str, range(1, len(classes) + 1)):
            raise ValueError(f"{column} is {shown(value)}; it must be 1 .. {len(classes)}")
    return member_path(text[0]), points, [int(value) - 1 for value in text[11:]]


def _number(text: str | None, what: str) -> float:
    value = number_of(text)
    if not math.isfinite(value):
        raise ValueError(f"{what} {shown(text)} is not a finite number")
    return value


def _crop_faces(
    name: str,
    table: Annotations,
    read: Callable[[str], bytes],
    boxes: Mapping[str, Box] | None,
    drop_outside: bool,
    progress: Callable[[int], None] | None,
) -> tuple[Arrays, dict[str, int]]:
    """Arrays of the rows that could be used, and how many were used and left out, by reason.

    Without ``boxes`` whole pictures are taken; landmarks are in [0, 1].
    """

    def face(index: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]] | str:
        """The crop and its landmarks, or the option that leaves the row out."""
        path, points, box = table.paths[index], table.landmarks[index], None
        if boxes is not None and (box := boxes.get(path)) is None:
            return NO_BOX
        if box is not None and drop_outside and not all_inside(points, box):
            return OUTSIDE
        try:
            picture = decode_grey(read(path))
            whole = (0.0, 0.0, float(picture.width), float(picture.height))
            if not all_inside(points, whole):
                raise ValueError(
                    f"a landmark lies outside the {picture.width}x{picture.height} picture"
                )
            return crop_resize(picture, box, SIZE), to_crop(points, box or whole, 1.0)
        except ValueError as error:
            raise DataError(
                f"{name}, row {table.rows[index]} ({path}): {error}; {AGAIN}"
            ) from error

    count = len(table.paths)
    images = np.empty((count, 1, SIZE, SIZE), np.uint8)
    points = np.empty((count, 10), np.float32)
    kept: list[int] = []
    counts = {"read": count, "used": 0}
    if boxes is not None:
        counts |= {NO_BOX: 0} | ({OUTSIDE: 0} if drop_outside else {})
    # Pillow decodes and resizes without the interpreter lock, so threads do help.
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
    try:
        for index, found in enumerate(pool.map(face, range(count))):
            if isinstance(found, str):
                counts[found] += 1
            else:
                images[len(kept), 0], points[len(kept)] = found
                kept.append(index)
            if progress and ((index + 1) % _REPORT_EVERY == 0 or index + 1 == count):
                progress(index + 1)
    finally:
        pool.shutdown(cancel_futures=True)
    counts["used"] = len(kept)
    if not kept:
        raise DataError(
            f"{name}: no row is left ({counts}); check the boxes and the pictures, "
            "or use crop='whole'"
        )
    arrays: dict[str, NDArray[Any]] = {
        "images": images[: len(kept)],
        "landmarks": points[: len(kept)],
        "labels": table.labels[kept],
        "rows": table.rows[kept],
        "paths": np.array(table.paths)[kept],
    }
    return arrays, counts


Source("mtfl", clients, "faces: the MTFL archive", ("path", "boxes", "cache")).register()
