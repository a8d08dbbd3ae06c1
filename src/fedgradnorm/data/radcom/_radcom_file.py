"""RadComDynamic's own file: HDF5, one tiny dataset a row, its labels in the dataset's name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._errors import DataError
from fedgradnorm._extras import needed
from fedgradnorm.data._bad_rows import BadRows, OnBad, tell_dropped
from fedgradnorm.data._paths import is_file
from fedgradnorm.data.radcom._key import LONGEST, Key, parse_key
from fedgradnorm.data.radcom._signal_set import (
    ALL_MODULATIONS,
    ALL_SIGNALS,
    OVER_THE_AIR,
    WAVEFORMS,
    WINDOW,
    Progress,
    RadCom,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

SHAPES = {(2 * WINDOW,), (1, 2 * WINDOW), (2, WINDOW)}  # all of them I first and then Q
REPORT_EVERY = 1000  # rows between two calls of progress

# What h5py raises on a damaged file, by the part that is damaged.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, SystemError)


def read(path: str | Path, *, on_bad: OnBad = "error", progress: Progress | None = None) -> RadCom:
    """The rows of a RadComDynamic HDF5 file, in the order of their names.

    A row that can't be used (key that does not parse, unknown name, not 256 numbers, NaN or
    infinity) raises DataError; with ``on_bad="drop"`` it is left out, counted and listed in the
    log. :func:`fedgradnorm.data.radcom.prepare` reads once and keeps the result.
    """
    data, dropped = read_rows(path, on_bad=on_bad, progress=progress)
    tell_dropped(dropped, path)
    return data


def read_rows(
    path: str | Path, *, on_bad: OnBad = "error", progress: Progress | None = None
) -> tuple[RadCom, list[str]]:
    """The rows, and one line for each row left out."""
    path = Path(path)
    bad: BadRows[bytes] = BadRows(on_bad)
    keys: list[Key] = []
    with _opened(path) as file:
        names = _names(path, file)
        iq = np.empty((len(names), 2 * WINDOW), dtype=np.float32)
        for done, (name, is_here) in enumerate(names, start=1):
            try:
                keys.append(_read_row(file, name, is_here, iq[len(keys)]))
            except DataError as error:
                bad.add(name, str(error), f"{path}, key {_shown(name)}")
            if progress is not None and (done % REPORT_EVERY == 0 or done == len(names)):
                progress(done, len(names))
    if not keys:
        raise DataError(
            f"{path}: none of its {len(names)} entries is a row of RadComDynamic; "
            "give the path of the original HDF5 file"
        )
    return _labelled(path, iq[: len(keys)], keys), bad.messages


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file; whatever HDF5 stumbles over becomes a DataError."""
    with needed("files", "reading HDF5 files"):
        import h5py

    if not is_file(path):
        raise DataError(f"{path}: no such file; give the path of RadComDynamic's HDF5 file")
    try:
        file = h5py.File(path, "r")
    except _DAMAGE as error:
        raise DataError(
            f"{path}: not an HDF5 file, or cut short ({_first_line(error)}); download it again"
        ) from None
    with file:
        yield file


def _names(path: Path, file: Any) -> list[tuple[bytes, bool]]:
    """Every entry's name, and whether it is stored in this file (not a link to elsewhere)."""
    import h5py

    found: list[tuple[bytes, bool]] = []

    def note(name: bytes, info: Any) -> None:
        found.append((name, info.type == h5py.h5l.TYPE_HARD))

    try:
        file.id.links.iterate(note, info=True)
    except _DAMAGE as error:
        raise DataError(
            f"{path}: its list of rows is damaged ({_first_line(error)}); download it again"
        ) from None
    return found


def _read_row(file: Any, name: bytes, is_here: bool, out: NDArray[np.float32]) -> Key:
    """Read one dataset into ``out`` and its labels from its name; DataError if it is not a row.

    h5py's low level, and HDF5's own conversion to float32: the high level takes twice as long.
    The shape is compared first, because the low level would write past the end of ``out``.
    """
    import h5py

    key = parse_key(name.decode("utf-8", "replace"))
    if not is_here:
        raise DataError("a link, not a dataset of this file")
    try:
        dataset = h5py.h5d.open(file.id, name)
        stored = dataset.get_create_plist()
        # Asked before the shape: to tell it, HDF5 may open the files that a virtual one is made of.
        if stored.get_layout() == h5py.h5d.VIRTUAL or stored.get_external_count():
            raise DataError("its numbers are in another file; copy them into this one")
        shape = dataset.shape
        if shape not in SHAPES:
            raise DataError(f"shape {shape}, expected {2 * WINDOW} numbers")
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, out.reshape(shape), h5py.h5t.NATIVE_FLOAT)
    except _DAMAGE as error:
        raise DataError(f"not a readable dataset of numbers ({_first_line(error)})") from None
    finite = np.isfinite(out)
    if not finite.all():
        place = int(finite.argmin())
        raise DataError(f"value {place} is {out[place]}, not a finite number")
    return key


def _labelled(path: Path, iq: NDArray[np.float32], keys: list[Key]) -> RadCom:
    table = np.array([key[:3] for key in keys], dtype=np.float64)
    pairs = (*WAVEFORMS, *OVER_THE_AIR)
    known = {(ALL_MODULATIONS.index(m), ALL_SIGNALS.index(s)) for m, s in pairs}
    odd = sum((key.modulation, key.signal) not in known for key in keys)
    if odd:
        logger.warning("%s: in %d rows modulation and signal are not a known pair", path, odd)
    modulation, signal = table[:, :2].T.astype(np.int64)
    return RadCom(iq, modulation, signal, table[:, 2].astype(np.float32), synthetic=False)


def _shown(name: bytes) -> str:
    """A key on one printable line, whatever is in it."""
    text = name.decode("utf-8", "backslashreplace")
    text = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    return text if text.isprintable() and text.isascii() else ascii(text)


def _first_line(error: BaseException) -> str:
    return ascii((str(error).splitlines() or [type(error).__name__])[0])[1:-1]
