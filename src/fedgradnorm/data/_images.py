"""From an encoded picture to a small grey one: decode, crop, resize."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._extras import needed

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[float, float, float, float]

FORMATS = ("JPEG", "PNG", "BMP")
LEAST_INSIDE = 0.25
"""A box with less of its area than this inside the picture is no box of something in it."""


def decode_grey(content: bytes) -> Image:
    """The picture in grey (luma, 8 bits); ValueError with the reason if it cannot be decoded."""
    with needed("files", "reading pictures"):
        from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            _check_pixels(picture)
            # A JPEG stores luma as such: taking it directly is faster and differs by rounding only.
            # Draft's smaller sizes are not used: they alias (differences of up to 91 grey levels).
            picture.draft("L", picture.size)
            grey = picture.convert("L")
            grey.load()
            return grey
    except Exception as error:  # Pillow's decoders raise many kinds of error on damaged bytes
        text = " ".join(str(error).split())
        if "cannot identify" in text:
            text = f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
        raise ValueError(f"picture cannot be decoded ({text or type(error).__name__})") from error


def crop_resize(picture: Image, box: Box | None, size: int) -> NDArray[np.uint8]:
    """The part of ``picture`` in ``box`` (all of it if None) as ``size`` x ``size`` pixels.

    The sides are scaled independently. Where the box leaves the picture, its edge pixels are
    repeated, so that what the box frames keeps its place. ValueError if the box misses the picture.
    """
    from PIL import Image

    if box is not None:
        _check_inside(picture.size, box)
        picture, box = _extended(picture, box)
    small = picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(small, dtype=np.uint8)


def to_crop(points: NDArray[np.float64], box: Box, size: float) -> NDArray[np.float64]:
    """Points x1..xn, y1..yn of a picture in coordinates of its crop, where ``size`` is its side."""
    x, y = np.split(points, 2)
    x0, y0, x1, y1 = box
    return np.concatenate([(x - x0) * size / (x1 - x0), (y - y0) * size / (y1 - y0)])


def all_inside(points: NDArray[np.float64], box: Box) -> bool:
    """Whether every point x1..xn, y1..yn lies in ``box``, borders included."""
    x, y = np.split(points, 2)
    x0, y0, x1, y1 = box
    return bool(((x >= x0) & (x <= x1) & (y >= y0) & (y <= y1)).all())


def _check_pixels(picture: Image) -> None:
    """Refuse what may be an attack on memory; Pillow warns of it, and refuses twice the size."""
    from PIL import Image

    most = Image.MAX_IMAGE_PIXELS
    if most is not None and picture.width * picture.height > most:
        raise ValueError(f"{picture.width}x{picture.height} pixels, more than {most}")


def _check_inside(size: tuple[int, int], box: Box) -> None:
    width, height = size
    x0, y0, x1, y1 = box
    inside = max(0.0, min(x1, width) - max(x0, 0)) * max(0.0, min(y1, height) - max(y0, 0))
    if not inside >= LEAST_INSIDE * (x1 - x0) * (y1 - y0):
        raise ValueError(
            f"box ({x0:g}, {y0:g}, {x1:g}, {y1:g}) lies mostly outside the {width}x{height} picture"
        )


def _extended(picture: Image, box: Box) -> tuple[Image, Box]:
    """The picture with its edge pixels repeated as far as the box reaches, and the box in it."""
    from PIL import Image

    x0, y0, x1, y1 = box
    left, top = (max(0, int(np.ceil(-start))) for start in (x0, y0))
    right = max(0, int(np.ceil(x1 - picture.width)))
    bottom = max(0, int(np.ceil(y1 - picture.height)))
    if not (left or top or right or bottom):
        return picture, box
    padded = np.pad(np.asarray(picture), ((top, bottom), (left, right)), mode="edge")
    return Image.fromarray(padded), (x0 + left, y0 + top, x1 + left, y1 + top)
