"""RadComDynamic's own file: HDF5, one tiny dataset a row, its labels in the dataset's name."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._checks import shown
from fedgradnorm._errors import DataError
from fedgradnorm._extras import needed
from fedgradnorm.data._bad_rows import BadRows, OnBad, tell_dropped
from fedgradnorm.data._files.tables import number_of, reason_of
from fedgradnorm.data._paths import is_file
from fedgradnorm.data.radcom._signal_set import (
    ALL_MODULATIONS,
    ALL_SIGNALS,
    OVER_THE_AIR,
    WAVEFORMS,
    WINDOW,
    Progress,
    RadCom,
)

logger = logging.getLogger(__name__)

CHUNK = 1 << 16  # numbers that are unpacked at once at most
SHAPES = {(2 * WINDOW,), (1, 2 * WINDOW), (2, WINDOW)}  # all of them I first and then Q
REPORT_EVERY = 1000  # rows between two calls of progress

# What h5py raises on a damaged file, by the part that is damaged.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, SystemError)

LONGEST = 200  # characters; the original's keys have about 45
LOUDEST = 60.0  # dB either way; the original goes from -20 to 18

_VALUE = (
    r"""[bu]?'(?P<single>[^'\\]*)'|[bu]?"(?P<double>[^"\\]*)"|(?P<bare>[A-Za-z0-9+.\-][\w .+\-]*)"""
)
_FIELD = re.compile(
    rf"\s*(?P<wrap>(?:(?:np|numpy)\.)?(?:str_|bytes_|u?int\d+|float\d+)\s*\()?\s*(?:{_VALUE})\s*"
    r"(?(wrap)\))\s*",
    re.ASCII,
)
_UNIT = re.compile(r"\s*dB$", re.IGNORECASE)
_INDEX = re.compile(r"[0-9]{1,18}(\.0*)?")
_BRACKETS = {"(": ")", "[": "]"}

NAMES = {"modulation": ALL_MODULATIONS, "signal": ALL_SIGNALS}
_ALIASES = {
    "pulse": "pulsed", "pcw": "pulsed", "dsb": "amdsb", "ssb": "amssb", "ook": "ask",
    "altimeter": "radaraltimeter", "am": "amradio", "satellitecommunication": "satcom",
    "mti": "airgroundmti", "raw": "satcom", "oqpsk": "dsssoqpsk", "cck": "dssscck",
}  # fmt: skip


def read(path: str | Path, *, on_bad: OnBad = "error", progress: Progress | None = None) -> RadCom:
    """The rows of a RadComDynamic HDF5 file, in the order of their names.

    A row that can't be used (key that does not parse, unknown name, not 256 numbers, NaN or
    infinity) raises DataError; with ``on_bad="drop"`` it is left out, counted and listed in the
    log. ``prepare`` reads once and keeps the result.
    """
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
                text = shown(name.decode("utf-8", "backslashreplace"), LONGEST)
                bad.add(name, str(error), f"{path}, key {text[1:-1]}")
            if progress is not None and (done % REPORT_EVERY == 0 or done == len(names)):
                progress(done, len(names))
    if not keys:
        raise DataError(
            f"{path}: none of its {len(names)} entries is a row of RadComDynamic; "
            "give the path of the original HDF5 file"
        )
    pairs = (*WAVEFORMS, *OVER_THE_AIR)
    known = {(ALL_MODULATIONS.index(m), ALL_SIGNALS.index(s)) for m, s in pairs}
    odd = sum((key.modulation, key.signal) not in known for key in keys)
    if odd:
        logger.warning("%s: in %d rows modulation and signal are not a known pair", path, odd)
    tell_dropped(bad.messages, path)
    table = np.array([key[:3] for key in keys], dtype=np.float64)
    modulation, signal = table[:, :2].T.astype(np.int64)
    levels = table[:, 2].astype(np.float32)
    return RadCom(iq[: len(keys)], modulation, signal, levels, False, tuple(bad.messages))


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
            f"{path}: not an HDF5 file, or cut short ({reason_of(error)}); download it again"
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
            f"{path}: its list of rows is damaged ({reason_of(error)}); download it again"
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
        # A chunk is unpacked as a whole: one that may grow can be far larger than its dataset.
        if stored.get_layout() == h5py.h5d.CHUNKED and math.prod(stored.get_chunk()) > CHUNK:
            raise DataError(f"chunks of {math.prod(stored.get_chunk())} numbers, more than {CHUNK}")
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, out.reshape(shape), h5py.h5t.NATIVE_FLOAT)
    except _DAMAGE as error:
        raise DataError(f"not a readable dataset of numbers ({reason_of(error)})") from None
    finite = np.isfinite(out)
    if not finite.all():
        place = int(finite.argmin())
        raise DataError(f"value {place} is {out[place]}, not a finite number")
    return key


class Key(NamedTuple):
    """One key's meaning: places in ``ALL_MODULATIONS`` and ``ALL_SIGNALS``, SNR in dB, number."""

    modulation: int
    signal: int
    snr: float
    number: int


def _plain(name: str) -> str:
    """A name without case, blanks or marks: AM-DSB, am_dsb and amdsb are one."""
    return re.sub(r"[\W_]", "", name).lower()


def parse_key(text: str) -> Key:
    """Read (modulation, signal, snr, index), in any spelling met so far; nothing is evaluated.

    Names in any case and with any hyphens; text or bytes; numbers plain, as text, or as NumPy
    prints them. In RadComAWGN the signal ``Raw`` is Satcom. Raises DataError saying what is wrong.

    >>> parse_key("('AM-DSB', b'AM radio', np.int64(-4), '12')")
    Key(modulation=3, signal=6, snr=-4.0, number=12)
    """
    text, parts = text.strip(), list[str]()
    if len(text) <= LONGEST:
        if (closing := _BRACKETS.get(text[:1])) and text.endswith(closing):
            text = text[1:-1].rstrip().removesuffix(",")
        matches = [_FIELD.fullmatch(part) for part in text.split(",")]
        parts = [match[match.lastgroup or "bare"].strip() for match in matches if match]
    if len(parts) != 4 or text.count(",") != 3:
        raise DataError("does not parse; expected (modulation, signal, snr, index)")
    modulation, signal, level, index = parts
    snr = number_of(_UNIT.sub("", level))
    if not abs(snr) <= LOUDEST:
        raise DataError(f"SNR {shown(level)} is not a number of dB within +-{LOUDEST:g}")
    if _INDEX.fullmatch(index) is None:
        raise DataError(f"index {shown(index)} is not a whole number")
    places = _place("modulation", modulation), _place("signal", signal)
    return Key(*places, snr, int(index.partition(".")[0]))


@lru_cache(maxsize=256)
def _place(what: str, name: str) -> int:
    """A name's place among the known ones."""
    known = NAMES[what]
    places = {_plain(one): place for place, one in enumerate(known)}
    plain = _plain(name)
    place = places.get(plain, places.get(_ALIASES.get(plain, "")))
    if place is None:
        raise DataError(f"unknown {what} {shown(name)} (known: {', '.join(known)})")
    return place
