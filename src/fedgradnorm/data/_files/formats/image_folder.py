"""A folder of images with a table of their labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm._extras import needed
from fedgradnorm._memory import check_memory
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._files.named_columns import Form, mark_cells, read_table, table_targets
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._paths import there

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

Color = Literal["grey", "rgb"]

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Pillow hands other formats to programs: PostScript to Ghostscript, whatever a file's ending."""

PIXEL_BYTES = 5  # of memory: as it was read, and in single precision


def rows_from_images(
    path: Path,
    folder: Path,
    path_column: str,
    targets: Sequence[str],
    labels: bool,
    bad: BadRows[int],
    *,
    size: int,
    color: Color,
    marks: Sequence[str] = (),
    form: Form | None = None,
) -> FileRows:
    """Images ``[n, 1 or 3, size, size]`` in 0 .. 1 and the targets of the table at ``path``.

    The table's ``path_column`` holds each image's path inside ``folder``, with either slash.
    """
    with needed("files", "reading images"):
        import PIL  # noqa: F401

    choose(color, ("grey", "rgb"), "color")
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 4096:
        raise ConfigError(f"size must be a whole number from 1 to 4096, not {size!r}")
    if not (there(folder) and folder.is_dir()):
        raise DataError(f"{folder}: no such folder of images; check the path")
    wanted = list(dict.fromkeys([path_column, *targets, *marks]))
    table = read_table(path, wanted, bad, form)
    cells = mark_cells(table, marks, bad, () if form is None else form.free)
    y = table_targets(table, targets, labels, bad)
    shape = (1 if color == "grey" else 3, size, size)
    pixels = len(table.rows) * math.prod(shape)
    check_memory(PIXEL_BYTES * pixels, f"{path}: {len(table.rows)} images of {size=}", DataError)
    x = np.zeros((len(table.rows), *shape), dtype=np.uint8)
    rows = FileRows(x, y, table.rows, table.lines, bad)
    root = folder.resolve()
    for i in rows.good():
        try:
            x[i] = _pixels(_inside(root, table.columns[path_column][i]), size, color)
        except DataError as error:
            rows.report(int(i), f"column {path_column!r}: {error}")
    return FileRows(x.astype(np.float32) / 255, y, table.rows, table.lines, bad, marks=cells)


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
