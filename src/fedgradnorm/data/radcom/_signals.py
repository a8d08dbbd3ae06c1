"""The nine waveforms as complex baseband, before any channel.

RadComDynamic publishes the kinds of signal but not their pulse widths, repetition intervals, sweep
bandwidths or symbol rates. The values here are ours. They are as near to practice as a window of
12.8 us at 10 MS/s lets them be: real audio or real sweeps hardly move in that time, so messages,
symbols and sweeps are fast enough to show several periods. ``docs/data-radcom.md`` has the table.

Times are in microseconds and frequencies in MHz, so that their product is a number of cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedgradnorm.data.radcom._signal_set import SAMPLE_RATE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Real = NDArray[np.float64]
    Complex = NDArray[np.complex64]

Waveform = Callable[[np.random.Generator, int, int], "Complex"]
"""(generator, rows, samples a row) -> complex64 [rows, samples], power not yet scaled."""

Range = tuple[float, float]

PULSE_EDGE = 0.1  # us from off to on: one sample, as a receiver of this bandwidth would see it
ROLL_OFF = 0.35  # of the root-raised-cosine filter: DVB-S's
FILTER_REACH = 5  # symbols to either side; the tail beyond is below -40 dB
TONES = 8  # tones in an AM message: enough to look like no single one


def _times(samples: int) -> Real:
    return np.arange(samples, dtype=np.float64) / (SAMPLE_RATE / 1e6)


def _draw(rng: np.random.Generator, rows: int, bounds: Range) -> Real:
    return rng.uniform(*bounds, size=(rows, 1))


def _smooth(x: Real) -> Real:
    """From 0 at x <= 0 to 1 at x >= 1 along a raised cosine."""
    return np.asarray(np.sin(0.5 * np.pi * np.clip(x, 0.0, 1.0)) ** 2)


def pulsed(width: Range, interval: Range, stagger: float = 0.0) -> Waveform:
    """A pulse train: ``width`` and ``interval`` in us, seen from a random moment on.

    ``stagger`` s makes the intervals alternate between (1 - s) and (1 + s) times the mean, as MTI
    radars do against blind speeds. No gap may reach the window's 12.8 us, or a row could be empty.
    """
    if interval[1] * (1 + stagger) - width[0] >= 12.8:
        raise ValueError("a window could fall between two pulses")

    def waveform(rng: np.random.Generator, rows: int, samples: int) -> Complex:
        wide, mean = _draw(rng, rows, width), _draw(rng, rows, interval)
        frame = 2 * mean  # two pulses a frame, so that stagger 0 is an even train
        now = _times(samples) + frame * _draw(rng, rows, (0.0, 1.0))
        envelope = np.zeros((rows, samples))
        for start in (0.0, (1 - stagger) * mean):
            away = np.abs((now - start + frame / 2) % frame - frame / 2)
            envelope += _smooth((wide / 2 - away) / PULSE_EDGE + 0.5)
        return envelope.astype(np.complex64)

    return waveform


def fmcw(period: Range, bandwidth: Range) -> Waveform:
    """Continuous carrier swept up and down in a triangle of ``bandwidth`` MHz every ``period`` us.

    The frequency is b/2 * tri(x) with x the place in the period and tri from 1 to -1 and back; its
    integral over x is x - 2x^2 on the way down and 2x^2 - 3x + 1 on the way up, 0 at both ends.
    """

    def waveform(rng: np.random.Generator, rows: int, samples: int) -> Complex:
        long, wide = _draw(rng, rows, period), _draw(rng, rows, bandwidth)
        x = (_times(samples) / long + _draw(rng, rows, (0.0, 1.0))) % 1.0
        integral = np.where(x < 0.5, x - 2 * x**2, 2 * x**2 - 3 * x + 1)
        return np.asarray(np.exp(1j * np.pi * wide * long * integral), dtype=np.complex64)

    return waveform


def root_raised_cosine(x: Real, roll_off: float = ROLL_OFF) -> Real:
    """Impulse response at ``x`` symbols from the centre (Proakis, Digital Communications)."""
    a, step = roll_off, 1e-6
    # The formula is 0/0 at x = 0 and |x| = 1/(4a); a millionth of a symbol aside it is not.
    hole = (np.abs(x) < step) | (np.abs(np.abs(x) - 1 / (4 * a)) < step)
    x = np.where(hole, x + 2 * step, x)
    top = np.sin(np.pi * x * (1 - a)) + 4 * a * x * np.cos(np.pi * x * (1 + a))
    return np.asarray(top / (np.pi * x * (1 - (4 * a * x) ** 2)))


def bpsk(rate: Range) -> Waveform:
    """Symbols +1 and -1, ``rate`` million a second, through a root-raised-cosine filter."""

    def waveform(rng: np.random.Generator, rows: int, samples: int) -> Complex:
        at = _symbol_times(rng, rows, samples, rate) + FILTER_REACH
        last = at.astype(np.int64)
        symbols = rng.integers(0, 2, size=(rows, int(last.max()) + FILTER_REACH + 1)) * 2.0 - 1.0
        total = np.zeros((rows, samples))
        for step in range(1 - FILTER_REACH, FILTER_REACH + 1):
            value = np.take_along_axis(symbols, last + step, axis=1)
            total += value * root_raised_cosine(at - last - step)
        return total.astype(np.complex64)

    return waveform


def ask(rate: Range, low: Range, edge: float = 0.2) -> Waveform:
    """Two levels, 1 and ``low``, ``rate`` million symbols a second.

    Each change takes ``edge`` of a symbol.
    """

    def waveform(rng: np.random.Generator, rows: int, samples: int) -> Complex:
        at = _symbol_times(rng, rows, samples, rate) + 1
        last = at.astype(np.int64)
        bits = rng.integers(0, 2, size=(rows, int(last.max()) + 1))
        levels = np.where(bits == 1, 1.0, _draw(rng, rows, low))
        before = np.take_along_axis(levels, last - 1, axis=1)
        after = np.take_along_axis(levels, last, axis=1)
        now = before + (after - before) * _smooth((at - last) / edge)
        return np.asarray(now, dtype=np.complex64)

    return waveform


def am_double(bandwidth: Range, index: Range) -> Waveform:
    """1 + m * message(t), the message at most 1: both sidebands and the carrier; ``index`` is m."""

    def waveform(rng: np.random.Generator, rows: int, samples: int) -> Complex:
        message = _message(rng, rows, samples, bandwidth).real
        message = message / np.abs(message).max(axis=1, keepdims=True)
        return np.asarray(1 + _draw(rng, rows, index) * message, dtype=np.complex64)

    return waveform


def am_single(bandwidth: Range) -> Waveform:
    """One sideband of the message, upper or lower, and no carrier."""

    def waveform(rng: np.random.Generator, rows: int, samples: int) -> Complex:
        message = _message(rng, rows, samples, bandwidth)
        upper = rng.integers(0, 2, size=(rows, 1)) == 1
        return np.where(upper, message, message.conj()).astype(np.complex64)

    return waveform


def _symbol_times(rng: np.random.Generator, rows: int, samples: int, rate: Range) -> Real:
    """Time in symbols, from a random part of the first one on."""
    return np.asarray(_times(samples) * _draw(rng, rows, rate) + _draw(rng, rows, (0.0, 1.0)))


def _message(
    rng: np.random.Generator, rows: int, samples: int, bandwidth: Range
) -> NDArray[np.complex128]:
    """A random message in analytic form: ``TONES`` tones from 5% to all of the bandwidth."""
    wide, now = _draw(rng, rows, bandwidth), _times(samples)
    total = np.zeros((rows, samples), dtype=np.complex128)
    for _ in range(TONES):
        cycles = wide * _draw(rng, rows, (0.05, 1.0)) * now + _draw(rng, rows, (0.0, 1.0))
        total += rng.rayleigh(size=(rows, 1)) * np.exp(2j * np.pi * cycles)
    return total


MAKERS: dict[tuple[str, str], Waveform] = {
    # high repetition frequency: many pulses in view
    ("pulsed", "Airborne-detection"): pulsed(width=(0.8, 1.2), interval=(3.0, 4.5)),
    # short pulses for fine range
    ("pulsed", "Airborne-range"): pulsed(width=(0.3, 0.5), interval=(5.0, 7.0)),
    # medium repetition frequency, staggered
    ("pulsed", "Air-Ground-MTI"): pulsed(width=(1.6, 2.4), interval=(7.0, 10.0), stagger=0.2),
    # long pulses for energy on the ground
    ("pulsed", "Ground mapping"): pulsed(width=(4.0, 6.0), interval=(11.0, 15.0)),
    ("fmcw", "Radar-Altimeter"): fmcw(period=(16.0, 32.0), bandwidth=(3.0, 8.0)),
    ("bpsk", "Satcom"): bpsk(rate=(1.0, 2.5)),
    ("amdsb", "AM radio"): am_double(bandwidth=(0.3, 1.0), index=(0.5, 0.9)),
    ("amssb", "AM radio"): am_single(bandwidth=(0.3, 1.0)),
    ("ask", "short-range"): ask(rate=(0.6, 1.2), low=(0.1, 0.3)),
}
