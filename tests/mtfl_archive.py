"""Small archives in MTFL's official layout, for tests."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

POINTS = (20.25, 40.5, 30, 22, 38, 25, 26, 40, 50.75, 51)


def jpeg(seed: int = 0, size: tuple[int, int] = (64, 72), mode: str = "RGB") -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize(size).convert(mode).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def row(
    path: str, points: tuple[float, ...] = POINTS, labels: tuple[int, ...] = (1, 2, 2, 3)
) -> str:
    return " ".join([path, *(f"{p:.6f}" for p in points), *map(str, labels)])


def text(rows: list[str]) -> bytes:
    """As the official files are: CRLF, a space before all rows but the first, a blank last line."""
    return "".join(f"{line}\r\n " for line in rows).encode()


def mtfl_files(train: int = 6, test: int = 3) -> dict[str, bytes]:
    def labels(index: int) -> tuple[int, int, int, int]:
        return index % 2 + 1, index // 2 % 2 + 1, index % 2 + 1, index % 5 + 1

    files = {f"lfw_5590/a{i}.jpg": jpeg(i) for i in range(train)}
    files |= {f"AFLW/b{i}.jpg": jpeg(100 + i, mode="L") for i in range(test)}
    files["training.txt"] = text(
        [row(f"lfw_5590\\a{i}.jpg", labels=labels(i)) for i in range(train)]
    )
    files["testing.txt"] = text([row(f"AFLW/b{i}.jpg", labels=labels(i)) for i in range(test)])
    return files


def write_zip(path: Path, files: Mapping[str, bytes], folder: str = "MTFL/") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{folder}{name}", content)
    return path


def box_csv(rows: Mapping[str, tuple[float, float, float, float]]) -> bytes:
    lines = ["path,x0,y0,x1,y1,score"]
    lines += [f"{path},{','.join(map(str, box))},0.99" for path, box in rows.items()]
    return "\n".join(lines).encode()
