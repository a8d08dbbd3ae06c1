"""A folder of images with a table of their labels."""

from __future__ import annotations

import math
import warnings
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

Color = Literal["grey", "rgb"]

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Pillow hands other formats to programs: PostScript to Ghostscript, whatever a file's ending."""

PIXEL_BYTES = 5  # of memory: as it was read, and in single precision


@dataclass(frozen=True)
class Images:
    """A folder of images that the table names; they become [1 or 3, size, size] in 0 .. 1.

    Args:
        images: folder of the images that the table names.
        size: images become size x size pixels.
        color: "grey" or "rgb".
    """

    images: str | Path | None = None
    size: int = 40
    color: Color = "grey"

    def check(self, folder: Path) -> None:
        """A ConfigError or DataError where no image could be read."""
        with needed("files", "reading images"):
            import PIL  # noqa: F401

        choose(self.color, ("grey", "rgb"), "color")
        size = self.size
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 4096:
            raise ConfigError(f"size must be a whole number from 1 to 4096, not {size!r}")
        if not (there(folder) and folder.is_dir()):
            raise DataError(f"{folder}: no such folder of images; check the path")

    def read(self, folder: Path, table: Cells, column: str) -> NDArray[Any]:
        """The images that ``column`` names inside ``folder``, with either slash."""
        count, places = len(table.frame), table.places
        shape = (1 if self.color == "grey" else 3, self.size, self.size)
        what = f"{places.bad.source}: {count} images of size={self.size}"
        check_memory(PIXEL_BYTES * count * math.prod(shape), what, DataError)
        x = np.zeros((count, *shape), dtype=np.uint8)
        root, names = folder.resolve(), table[column]
        for i in places.good().tolist():
            try:
                x[i] = _pixels(_inside(root, names[i]), self.size, self.color)
            except DataError as error:
                places.report(i, f"column {column!r}: {error}")
        return x.astype(np.float32) / 255


def _inside(root: Path, name: object) -> Path:
    """The image's path, refused where it leads out of the folder (also through a link)."""
    text = "" if name is None else str(name).strip()
    if not text:
        raise DataError("no image path")
    try:
        path = (root / text.replace("\\", "/")).resolve()
        if not path.is_relative_to(root):
            raise DataError(f"{shown(text)} leads outside the image folder")
        if not path.is_file():
            raise DataError(f"no image {shown(text)} in the image folder")
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{shown(text)} is not a usable path") from error
    return path


def _pixels(path: Path, size: int, color: Color) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Pillow only warns of an image so large that it may be an attack on memory.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                upright = ImageOps.exif_transpose(image)
                plain = _eight_bits(upright).convert("L" if color == "grey" else "RGB")
                small = np.asarray(plain.resize((size, size), Image.Resampling.BILINEAR))
    # A damaged image surfaces as almost any exception of Pillow's decoders.
    except Exception as error:
        raise DataError(f"image {shown(path.name)} cannot be read ({shown(str(error))})") from error
    return small[None] if color == "grey" else small.transpose(2, 0, 1)


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled down; Pillow's own conversion would clip it to white."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image, dtype=np.int64).clip(0, 65535)
    return Image.fromarray((values // 257).astype(np.uint8))
