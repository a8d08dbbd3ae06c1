"""The slow part of MTFL: every picture decoded, cropped and shrunk, on several threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._errors import DataError
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._images import Box, all_inside, crop_resize, decode_grey, to_crop
from fedgradnorm.data.mtfl._annotations import Annotations

Face = tuple[NDArray[np.uint8], NDArray[np.float64]]

NO_BOX, OUTSIDE = "without a box", "landmark outside the box"

_REPORT_EVERY = 100


class _LeftOut(Exception):
    """A sound row that the chosen options leave out; the text says which option."""


@dataclass(frozen=True)
class Crops:
    """How one split's faces are cut out; ``boxes`` None means whole pictures."""

    name: str
    read: Callable[[str], bytes]
    boxes: Mapping[str, Box] | None
    drop_outside: bool
    size: int

    def face(self, path: str, points: NDArray[np.float64]) -> Face:
        """The crop, and its landmarks in [0, 1]; ValueError for a bad row."""
        box = None
        if self.boxes is not None:
            box = self.boxes.get(path)
            if box is None:
                raise _LeftOut(NO_BOX)
            if self.drop_outside and not all_inside(points, box):
                raise _LeftOut(OUTSIDE)
        picture = decode_grey(self.read(path))
        whole = (0.0, 0.0, float(picture.width), float(picture.height))
        if not all_inside(points, whole):
            raise ValueError(
                f"a landmark lies outside the {picture.width}x{picture.height} picture"
            )
        return crop_resize(picture, box, self.size), to_crop(points, box or whole, 1.0)


def crop_faces(
    crops: Crops,
    table: Annotations,
    bad: BadRows[str],
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """Arrays of the rows that could be used, and how many were used and left out, by reason."""
    side, count = crops.size, len(table.paths)
    images = np.empty((count, 1, side, side), np.uint8)
    points = np.empty((count, 10), np.float32)
    kept: list[int] = []
    counts = {"read": count, "used": 0, "bad": 0}
    if crops.boxes is not None:
        counts |= {NO_BOX: 0} | ({OUTSIDE: 0} if crops.drop_outside else {})

    def work(index: int) -> Face | Exception:
        try:
            return crops.face(table.paths[index], table.landmarks[index])
        except (ValueError, _LeftOut) as error:
            return error

    # Pillow decodes and resizes without the interpreter lock, so threads do help.
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
    try:
        for index, face in enumerate(pool.map(work, range(count))):
            if isinstance(face, _LeftOut):
                counts[str(face)] += 1
            elif isinstance(face, Exception):
                where = f"{crops.name}, row {table.rows[index]} ({table.paths[index]})"
                bad.add(where, str(face))
                counts["bad"] += 1
            else:
                images[len(kept), 0], points[len(kept)] = face
                kept.append(index)
            if progress and ((index + 1) % _REPORT_EVERY == 0 or index + 1 == count):
                progress(index + 1)
    finally:
        pool.shutdown(cancel_futures=True)
    counts["used"] = len(kept)
    if not kept:
        raise DataError(
            f"{crops.name}: no row is left ({counts}); check the boxes and the pictures, "
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
