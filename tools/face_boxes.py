"""Find a face box for every picture of MTFL with the Haar cascades that OpenCV carries.

    pip install "opencv-python-headless<5"
    python tools/face_boxes.py MTFL.zip boxes.csv

The detector behind the package's own boxes was not recorded; this one anybody can install. The
annotations are never read, so no box depends on the landmarks.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import cv2
import numpy as np

CASCADES = ("haarcascade_frontalface_alt2.xml", "haarcascade_profileface.xml")
SCALE, NEIGHBORS, SMALLEST = 1.1, 3, 0.2  # the smallest face is a fifth of the picture's side


def find(grey: np.ndarray) -> tuple[int, int, int, int] | None:
    """The surest frontal face, else the surest profile, to the left or to the right."""
    frontal, profile = (cv2.CascadeClassifier(cv2.data.haarcascades + name) for name in CASCADES)
    found = _detect(frontal, grey)
    if not found:
        found = _detect(profile, grey)
        for score, (x, y, w, h) in _detect(profile, cv2.flip(grey, 1)):
            found.append((score, (grey.shape[1] - x - w, y, w, h)))
    if not found:
        return None
    _, (x, y, w, h) = max(found)
    return x, y, x + w, y + h


def _detect(cascade: cv2.CascadeClassifier, grey: np.ndarray) -> list:
    side = round(SMALLEST * min(grey.shape))
    boxes, _, scores = cascade.detectMultiScale3(
        grey, SCALE, NEIGHBORS, minSize=(side, side), outputRejectLevels=True
    )
    return [(float(s), tuple(map(int, box))) for s, box in zip(scores, boxes, strict=True)]


Found = dict[str, tuple[tuple[int, int], tuple[int, int, int, int] | None]]
"""By path: the picture's width and height, and its face."""


def lines(found: Found) -> list[str]:
    """The CSV. Where no face was found, the box is the middle one of the folder's, with score 0."""
    shares: dict[str, list[np.ndarray]] = {}
    for path, (size, box) in found.items():
        if box is not None:
            shares.setdefault(path.split("/")[0], []).append(np.array(box) / (*size, *size))
    middle = {folder: np.median(boxes, axis=0) for folder, boxes in shares.items()}
    made = ["path,x0,y0,x1,y1,score"]
    for path, (size, box) in found.items():
        one = box or np.rint(middle[path.split("/")[0]] * (*size, *size)).astype(int)
        made.append(",".join([path, *map(str, one), str(int(box is not None))]))
    return made


def main(archive: Path, out: Path) -> None:
    """Write a line for each picture, in the order of their names."""
    found: Found = {}
    with zipfile.ZipFile(archive) as opened:
        for name in sorted(n for n in opened.namelist() if n.lower().endswith(".jpg")):
            content = np.frombuffer(opened.read(name), np.uint8)
            grey = cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)
            path = name.removeprefix("MTFL/")
            found[path] = (grey.shape[1], grey.shape[0]), find(cv2.equalizeHist(grey))
    text = "\n".join([*lines(found), ""])
    out.write_text(text, encoding="utf-8")
    known = sum(box is not None for _, box in found.values())
    print(f"OpenCV {cv2.__version__}: a face in {known} of {len(found)} pictures")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
