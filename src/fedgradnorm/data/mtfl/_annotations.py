"""Readers of MTFL's text files: the annotations, and the CSV of face boxes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._checks import shown
from fedgradnorm._errors import DataError
from fedgradnorm.data._bad_rows import BadRows

CLASSES: dict[str, tuple[str, ...]] = {
    "gender": ("male", "female"),
    "smile": ("smiling", "not smiling"),
    "glasses": ("glasses", "no glasses"),
    "pose": ("left profile", "left", "frontal", "right", "right profile"),
}
"""The label columns in file order, and what each class means (files count from 1, we from 0)."""

Box = tuple[float, float, float, float]

_FIELDS = 15
_BOX_COLUMNS = ("x0", "y0", "x1", "y1")


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


def parse_annotations(content: bytes, name: str, bad: BadRows[str]) -> Annotations:
    """Read ``training.txt`` or ``testing.txt``: 15 fields a row, either slash, any line ending."""
    paths: list[str] = []
    rows: list[int] = []
    landmarks: list[list[float]] = []
    labels: list[list[int]] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            path, points, classes = _row(line)
        except ValueError as error:
            bad.add(f"{name}, row {number}", str(error))
            continue
        paths.append(path)
        rows.append(number)
        landmarks.append(points)
        labels.append(classes)
    if not paths:
        raise DataError(f"{name}: no usable row; is this MTFL's annotation file?")
    return Annotations(
        paths, np.array(rows, np.int64), np.array(landmarks, np.float64), np.array(labels, np.int64)
    )


def parse_boxes(content: bytes, name: str, bad: BadRows[str]) -> dict[str, Box]:
    """Read the CSV of face boxes (path, x0, y0, x1, y1 and, optionally, score).

    If an image has several boxes, the one with the highest score counts, and the first of equals.
    """
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        missing = [c for c in ("path", *_BOX_COLUMNS) if c not in (reader.fieldnames or ())]
        if missing:
            raise DataError(
                f"{name}: no column {', '.join(missing)}; "
                "the first line must read path,x0,y0,x1,y1,score"
            )
        return _best_boxes(reader, name, bad)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{name}: not a CSV file in UTF-8 ({error}); export it again") from error


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
    if len(fields) != _FIELDS:
        raise ValueError(f"{len(fields)} fields, not {_FIELDS}")
    try:
        text = [field.decode() for field in fields]
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    points = [_number(value, "landmark") for value in text[1:11]]
    if points[0] == points[1] and points[5] == points[6]:
        raise ValueError("both eyes are the same point")
    classes = [
        _label(value, column, len(CLASSES[column]))
        for value, column in zip(text[11:], CLASSES, strict=True)
    ]
    return member_path(text[0]), points, classes


def _number(text: str | None, what: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{what} {shown(text)} is not a finite number")
    return value


def _label(text: str, column: str, classes: int) -> int:
    if text not in map(str, range(1, classes + 1)):
        raise ValueError(f"{column} is {shown(text)}; it must be 1 .. {classes}")
    return int(text) - 1


def _best_boxes(reader: csv.DictReader[str], name: str, bad: BadRows[str]) -> dict[str, Box]:
    best: dict[str, tuple[float, Box]] = {}
    for record in reader:
        try:
            path, score, box = _box(record)
        except ValueError as error:
            bad.add(f"{name}, row {reader.line_num}", str(error))
            continue
        if path not in best or score > best[path][0]:
            best[path] = (score, box)
    return {path: box for path, (_, box) in best.items()}


def _box(record: Mapping[str, Any]) -> tuple[str, float, Box]:
    if None in record or None in record.values():
        raise ValueError("not as many fields as the first line names")
    x0, y0, x1, y1 = (_number(record[column], column) for column in _BOX_COLUMNS)
    if x1 - x0 < 1 or y1 - y0 < 1:
        raise ValueError(
            f"box ({x0:g}, {y0:g}, {x1:g}, {y1:g}) is less than one pixel wide or high"
        )
    score = _number(record["score"], "score") if "score" in record else 0.0
    return member_path(record["path"]), score, (x0, y0, x1, y1)
