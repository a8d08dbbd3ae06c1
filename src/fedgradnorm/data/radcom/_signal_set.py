"""What a set of RadComDynamic signals is: its names, its nine waveforms, its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


Progress = Callable[[int, int], None]
"""Called now and then with (done, total)."""

WINDOW = 128
"""Complex samples a row: 12.8 us."""

SAMPLE_RATE = 10e6
"""Samples a second."""

MODULATIONS = ("pulsed", "fmcw", "bpsk", "amdsb", "amssb", "ask")
"""The names as the original spells them; a label is a place in this tuple."""

SIGNALS = (
    "Airborne-detection", "Airborne-range", "Air-Ground-MTI", "Ground mapping",
    "Radar-Altimeter", "Satcom", "AM radio", "short-range",
)  # fmt: skip
"""The names as the original spells them; a label is a place in this tuple."""

WAVEFORMS = (
    ("pulsed", "Airborne-detection"),
    ("pulsed", "Airborne-range"),
    ("pulsed", "Air-Ground-MTI"),
    ("pulsed", "Ground mapping"),
    ("fmcw", "Radar-Altimeter"),
    ("bpsk", "Satcom"),
    ("amdsb", "AM radio"),
    ("amssb", "AM radio"),
    ("ask", "short-range"),
)
"""The nine (modulation, signal) pairs that exist."""

OVER_THE_AIR = (
    ("gfsk", "Bluetooth"),
    ("dsss-oqpsk", "IEEE802.15.4"),
    ("dsss-cck", "IEEE802.11bg"),
)
"""Three more pairs, which only the over-the-air release has; their labels follow the others."""

ALL_MODULATIONS = (*MODULATIONS, *(modulation for modulation, _ in OVER_THE_AIR))
ALL_SIGNALS = (*SIGNALS, *(signal for _, signal in OVER_THE_AIR))

SNRS = tuple(range(-20, 20, 2))
"""Signal-to-noise ratios of the original, in dB."""

ORIGINAL_SAMPLES = 125_361
"""Rows of the original set."""


@dataclass(frozen=True, eq=False)
class RadCom:
    """Radio windows and their labels, one row each.

    ``iq`` is float32 [n, 256], 128 in-phase values and then 128 quadrature values at 10 MS/s;
    ``modulation`` and ``signal`` are int64 places in ``MODULATIONS`` and ``SIGNALS``, and after
    them in those of the over-the-air release; ``snr`` is float32 in dB. ``synthetic`` says that
    the rows were generated, ``dropped`` which rows of a file were left out. Generated rows have
    mean power 1; the windows of a file have the receiver's level, such as an RMS of 0.006.
    """

    iq: FloatArray
    modulation: IntArray
    signal: IntArray
    snr: FloatArray
    synthetic: bool
    dropped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.iq)
