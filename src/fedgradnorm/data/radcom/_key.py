"""What a dataset's name in RadComDynamic's file says: ``('bpsk', 'Satcom', -20, 17)``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from fedgradnorm._checks import shown
from fedgradnorm._errors import DataError
from fedgradnorm.data.radcom._signal_set import ALL_MODULATIONS, ALL_SIGNALS

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
    fields = _fields(text)
    if fields is None:
        raise DataError("does not parse; expected (modulation, signal, snr, index)")
    modulation, signal, snr, index = fields
    return Key(
        _place("modulation", modulation), _place("signal", signal), _decibels(snr), _count(index)
    )


def _fields(text: str) -> list[str] | None:
    """The four fields as text, or None."""
    text = text.strip()
    if len(text) > LONGEST:
        return None
    if text[:1] in _BRACKETS:
        if text[-1] != _BRACKETS[text[0]]:
            return None
        text = text[1:-1].rstrip().removesuffix(",")
    found = [match for part in text.split(",") if (match := _FIELD.fullmatch(part))]
    if len(found) != 4 or text.count(",") != 3:
        return None
    return [match[match.lastgroup or "bare"].strip() for match in found]


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


@lru_cache(maxsize=256)
def _decibels(field: str) -> float:
    try:
        value = float(_UNIT.sub("", field))
    except ValueError:
        value = float("nan")
    if not abs(value) <= LOUDEST:
        raise DataError(f"SNR {shown(field)} is not a number of dB within +-{LOUDEST:g}")
    return value


def _count(field: str) -> int:
    if _INDEX.fullmatch(field) is None:
        raise DataError(f"index {shown(field)} is not a whole number")
    return int(field.partition(".")[0])
