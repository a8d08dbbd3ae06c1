"""Pictures: decoded, cropped and resized; and a folder of images with a table of their labels."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm._extras import needed
from fedgradnorm._memory import check_memory
from fedgradnorm.data._files.tables import Cells
from fedgradnorm.data._paths import there

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    Pixels = NDArray[np.uint8]

Color = Literal["gray", "rgb"]
Box = tuple[float, float, float, float]

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Pillow hands other formats to programs: PostScript to Ghostscript, whatever a file's ending."""

PIXEL_BYTES = 5  # of memory: as it was read, and in single precision
LEAST_INSIDE = 0.25
"""A box with less of its area than this inside the picture is no box of something in it."""


@dataclass(frozen=True)
class Images:
    """A folder of images that the table lists; inputs are [1 or 3, size, size] from 0 to 1.

    Args:
        images: the folder, or zip archive, of the images that the table lists.
        size: images are resized to size x size pixels.
        color: "gray" or "rgb".
    """

    images: str | Path | None = None
    size: int = 40
    color: Color = "gray"

    def check(self, folder: Path) -> None:
        """A ConfigError or DataError where no image could be read."""
        with needed("files", "reading images"):
            import PIL  # noqa: F401

        choose(self.color, ("gray", "rgb"), "color")
        size = self.size
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 4096:
            raise ConfigError(f"size must be a whole number from 1 to 4096, not {size!r}")
        if not (there(folder) and folder.is_dir()):
            raise DataError(f"{folder}: no such folder of images; check the path")

    def read(self, folder: Path, table: Cells, column: str) -> NDArray[Any]:
        """The images that ``column`` names inside ``folder``, with either slash."""
        count, places = len(table.frame), table.places
        shape = (1 if self.color == "gray" else 3, self.size, self.size)
        what = f"{places.bad.source}: {count} images of size={self.size}"
        check_memory(PIXEL_BYTES * count * math.prod(shape), what, DataError)
        x = np.zeros((count, *shape), dtype=np.uint8)
        root, names = folder.resolve(), table[column]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a size that is checked, and of odd metadata
            for i in places.good().tolist():
                try:
                    path = _inside(root, names[i])
                    with _decoded(path, f"image {shown(path.name)} cannot be read") as image:
                        x[i] = self._pixels(image)
                except ValueError as error:
                    places.report(i, f"column {column!r}: {error}")
        return x.astype(np.float32) / 255

    def _pixels(self, image: Image.Image) -> Pixels:
        from PIL import Image, ImageOps

        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16-bit gray, which Pillow itself would clip to white
            values = np.asarray(upright, dtype=np.int64).clip(0, 65535)
            upright = Image.fromarray((values // 257).astype(np.uint8))
        plain = upright.convert("L" if self.color == "gray" else "RGB")
        small = np.asarray(plain.resize((self.size, self.size), Image.Resampling.BILINEAR))
        return small[None] if self.color == "gray" else small.transpose(2, 0, 1)


def _inside(root: Path, name: object) -> Path:
    """The image's path, refused where it leads out of the folder (also through a link)."""
    text = "" if name is None else str(name).strip()
    if not text:
        raise ValueError("no image path")
    try:
        path = (root / text.replace("\\", "/")).resolve()
        known = path.is_relative_to(root)
        is_there = known and path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{shown(text)} is not a usable path") from error
    if not known:
        raise ValueError(f"{shown(text)} leads outside the image folder")
    if not is_there:
        raise ValueError(f"no image {shown(text)} in the image folder")
    return path


@contextmanager
def _decoded(source: Path | io.BytesIO, failed: str) -> Iterator[Image.Image]:
    """An open picture; whatever goes wrong with it is a ValueError."""
    with needed("files", "reading pictures"):
        from PIL import Image

    try:
        with Image.open(source, formats=FORMATS) as picture:
            most = Image.MAX_IMAGE_PIXELS  # Pillow itself refuses twice as many
            if most is not None and picture.width * picture.height > most:
                raise ValueError(f"{picture.width}x{picture.height} pixels, more than {most}")
            yield picture
    except Exception as error:  # Pillow's decoders raise many kinds of error on damaged bytes
        text = " ".join(str(error).split())
        if "cannot identify" in text:
            text = f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
        raise ValueError(f"{failed} ({text or type(error).__name__})") from error


def decode_grey(content: bytes) -> Image.Image:
    """The picture in gray (luma, 8 bits); ValueError with the reason if it cannot be decoded."""
    with _decoded(io.BytesIO(content), "picture cannot be decoded") as picture:
        # A JPEG stores luma as such: taking it directly is faster and differs by rounding only.
        # Draft's smaller sizes are not used: they alias (differences of up to 91 gray levels).
        picture.draft("L", picture.size)
        grey = picture.convert("L")
        grey.load()
        return grey


def crop_resize(picture: Image.Image, box: Box | None, size: int) -> Pixels:
    """The part of ``picture`` in ``box`` (all of it if None) as ``size`` x ``size`` pixels.

    The sides are scaled independently. Where the box leaves the picture, its edge pixels are
    repeated, so that what the box frames keeps its place. ValueError if the box misses the picture.
    """
    from PIL import Image

    if box is not None:
        x0, y0, x1, y1 = box
        width, height = picture.size
        across, down = min(x1, width) - max(x0, 0), min(y1, height) - max(y0, 0)
        if not max(0.0, across) * max(0.0, down) >= LEAST_INSIDE * (x1 - x0) * (y1 - y0):
            raise ValueError(
                f"box ({x0:g}, {y0:g}, {x1:g}, {y1:g}) lies mostly outside the {width}x{height} "
                "picture"
            )
        left, top, right, bottom = (
            max(0, int(np.ceil(beyond))) for beyond in (-x0, -y0, x1 - width, y1 - height)
        )
        if left or top or right or bottom:
            edges = ((top, bottom), (left, right))
            picture = Image.fromarray(np.pad(np.asarray(picture), edges, mode="edge"))
            box = (x0 + left, y0 + top, x1 + left, y1 + top)
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
