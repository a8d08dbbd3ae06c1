"""Labeled radio windows without a download: the nine waveforms through the published channel.

RadComDynamic publishes the kinds of signal but not their pulse widths, repetition intervals, sweep
bandwidths or symbol rates. The values here are ours. They are as near to practice as a window of
12.8 us at 10 MS/s lets them be: real audio or real sweeps hardly move in that time, so messages,
symbols and sweeps are fast enough to show several periods.

Times are in microseconds and frequencies in MHz, so that their product is a number of cycles.

The channel is GNU Radio's dynamic channel model with RadComDynamic's values: sample-rate offset,
carrier offset, fading over several paths, noise. Every row is a window at a random moment of one
endless transmission. So each slow process starts at a draw from its long-run distribution, and
then moves as published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._errors import choose
from fedgradnorm._memory import check_draw
from fedgradnorm.data.radcom._signal_set import (
    MODULATIONS,
    ORIGINAL_SAMPLES,
    SAMPLE_RATE,
    SIGNALS,
    SNRS,
    WAVEFORMS,
    WINDOW,
    Progress,
    RadCom,
)

Real = NDArray[np.float64]
Complex = NDArray[np.complex64]


logger = logging.getLogger(__name__)

ROW_BYTES = 4 * 2 * WINDOW + 64  # of memory: the signal in single precision, and its labels
CHUNK = 1024  # rows at a time: the work stays in a few tens of MB whatever the number of rows
Counts = Literal["original", "even"]
SHARES: dict[str, dict[tuple[str, str], int]] = {
    "original": {pair: 13_361 if pair[0] == "bpsk" else 14_000 for pair in WAVEFORMS},
    "even": {pair: 13_787 if pair[0] in ("fmcw", "bpsk", "ask") else 14_000 for pair in WAVEFORMS},
}
"""Rows of each waveform: the nominal 700 an SNR, less 639. In the original all of these are bpsk;
with "even" a third each of fmcw, bpsk and ask, as in the published results of this package."""

Waveform = Callable[[np.random.Generator, int, int], "Complex"]
"""(generator, rows, samples a row) -> complex64 [rows, samples], power not yet scaled."""

Range = tuple[float, float]

PULSE_EDGE = 0.1  # us from off to on: one sample, as a receiver of this bandwidth would see it
ROLL_OFF = 0.35  # of the root-raised-cosine filter: DVB-S's
FILTER_REACH = 5  # symbols to either side; the tail beyond is below -40 dB
TONES = 8  # tones in an AM message: enough to look like no single one

CARRIER_STEP, CARRIER_LIMIT = 0.05, 250.0  # Hz a sample, Hz
CLOCK_STEP, CLOCK_LIMIT = 0.05, 60.0  # Hz a sample, Hz
DOPPLER = 2.0  # Hz
SINUSOIDS = 5
RICIAN_K = 3.0
DELAYS = (0.2, 0.3, 0.1)  # samples
MAGNITUDES = (1.0, 0.5, 0.5)
TAPS = 5

REACH = 4  # samples to either side that one interpolated sample is made from
SAMPLES_NEEDED = WINDOW + TAPS - 1 + 2 * REACH + 1
"""Samples of waveform that make one window: the taps' past and the interpolator's reach."""


def generate(
    samples: int = ORIGINAL_SAMPLES,
    seed: int = 0,
    *,
    channel: bool = True,
    counts: Counts = "original",
    progress: Progress | None = None,
) -> RadCom:
    """``samples`` synthetic rows with the original's shares of waveforms and SNRs, shuffled.

    The same arguments give the same rows; other numbers of samples give others.
    Every row (signal and noise together) is scaled to mean power 1, as a receiver's gain control
    would, so that its power says nothing about its SNR.

    >>> data = generate(360, seed=1)
    >>> data.iq.shape, data.synthetic
    ((360, 256), True)
    """
    check_draw("radcom", {"samples": samples}, seed, ROW_BYTES)
    shares = SHARES[choose(counts, SHARES, "counts")]
    rng = np.random.default_rng(seed)
    cells = cell_counts(int(samples), rng, shares)
    place = rng.permutation(int(samples))
    iq = np.empty((samples, 2 * WINDOW), dtype=np.float32)
    kind = np.empty(samples, dtype=np.int64)
    snr = np.empty(samples, dtype=np.float32)
    done = 0
    for waveform, row in enumerate(cells):
        values = np.repeat(np.array(SNRS, dtype=np.float64), row)
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK]
            here = place[done : done + len(part)]
            clean, noise = received(WAVEFORMS[waveform], part, rng, channel=channel)
            whole = clean + noise
            iq[here] = np.concatenate([whole.real, whole.imag], axis=1)
            kind[here], snr[here] = waveform, part
            done += len(part)
            if progress is not None:
                progress(done, int(samples))
    logger.info(
        "radcom: %d SYNTHETIC radio signals from seed %d, not RadComDynamic's", samples, seed
    )
    modulation = np.array([MODULATIONS.index(name) for name, _ in WAVEFORMS], dtype=np.int64)
    signal = np.array([SIGNALS.index(name) for _, name in WAVEFORMS], dtype=np.int64)
    return RadCom(iq, modulation[kind], signal[kind], snr, synthetic=True)


def cell_counts(
    samples: int, rng: np.random.Generator, shares: Mapping[tuple[str, str], int]
) -> NDArray[np.int64]:
    """Rows of each waveform and SNR: [9, 20].

    Systematic sampling: the cells lie end to end in a line, as long as their shares, and marks are
    set along it at even distances from a random start. Each waveform's number is within one of
    its share. Whole-number arithmetic, so that 125,361 gives the original's numbers exactly.
    """
    lengths = np.repeat([shares[pair] for pair in WAVEFORMS], len(SNRS))
    total = int(lengths.sum())
    order = [rng.permutation(len(SNRS)) + i * len(SNRS) for i in range(len(WAVEFORMS))]
    line = np.concatenate(order)
    marks = (np.cumsum(lengths[line]) * samples + rng.integers(total)) // total
    counts = np.empty(len(line), dtype=np.int64)
    counts[line] = np.diff(marks, prepend=0)
    return counts.reshape(len(WAVEFORMS), len(SNRS))


def received(
    waveform: tuple[str, str],
    snr: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    channel: bool = True,
) -> tuple[Complex, Complex]:
    """The two parts of received rows, one row an SNR: what the channel left, and the noise.

    A row is their sum. SNR = mean power of the first over mean power of the second, in the row.
    """
    sent = MAKERS[waveform](rng, len(snr), SAMPLES_NEEDED)
    clean = apply_channel(sent, rng) if channel else sent[:, :WINDOW]
    noise = white_noise(clean, snr, rng)
    gain = 1 / np.sqrt(power(clean + noise))
    return clean * gain, noise * gain


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
    """Impulse response at ``x`` symbols from the center (Proakis, Digital Communications)."""
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


def apply_channel(signal: Complex, rng: np.random.Generator) -> Complex:
    """[rows, SAMPLES_NEEDED] of a transmitted waveform -> [rows, WINDOW] as received, no noise."""
    rows, length = len(signal), WINDOW + TAPS - 1
    clock = bounded_walk(rng, rows, length, CLOCK_STEP, CLOCK_LIMIT)
    steps = 1 + clock / SAMPLE_RATE
    at = REACH - 1 + rng.uniform(size=(rows, 1)) + np.cumsum(steps, axis=1) - steps
    carrier = bounded_walk(rng, rows, length, CARRIER_STEP, CARRIER_LIMIT)
    cycles = rng.uniform(size=(rows, 1)) + np.cumsum(carrier, axis=1) / SAMPLE_RATE
    turned = interpolate(signal, at) * np.exp(2j * np.pi * cycles).astype(np.complex64)
    gains = [fading(rng, rows, RICIAN_K if path == 0 else None) for path in range(len(DELAYS))]
    return multipath(turned, np.stack(gains, axis=1))


def bounded_walk(
    rng: np.random.Generator, rows: int, length: int, step: float, limit: float
) -> Real:
    """Random walk within +-limit; it starts anywhere, as such a walk is everywhere alike."""
    start = rng.uniform(-limit, limit, size=(rows, 1))
    moves = rng.normal(scale=step, size=(rows, length))
    return np.clip(start + np.cumsum(moves, axis=1), -limit, limit)


def interpolate(signal: Complex, at: Real) -> Complex:
    """The signal at fractional places: a sinc under a Hann window, 2 * ``REACH`` samples wide."""
    base = np.floor(at).astype(np.int64)
    part = at - base
    total = np.zeros(at.shape, dtype=np.complex64)
    for step in range(1 - REACH, REACH + 1):
        away = part - step
        weight = np.sinc(away) * np.cos(0.5 * np.pi * away / REACH) ** 2
        total += np.take_along_axis(signal, base + step, axis=1) * weight.astype(np.float32)
    return total


def fading(rng: np.random.Generator, rows: int, k: float | None) -> NDArray[np.complex128]:
    """Complex gain of one path at both ends of the window, mean power 1: [rows, 2].

    Scattered part: a sum of N sinusoids at arrival angles a_n = (2 pi n - pi + theta) / 4N
    (Zheng and Xiao, 2002). With ``k`` a direct wave of K/(K+1) of the power is added (Rice). In
    12.8 us at 2 Hz the phases turn by less than 2e-4 rad, so the ends say all there is to say.
    """
    now = np.array([0.0, WINDOW / SAMPLE_RATE])[:, None]
    order = np.arange(1, SINUSOIDS + 1)
    theta = rng.uniform(-np.pi, np.pi, size=(rows, 1, 1))
    angle = (2 * np.pi * order - np.pi + theta) / (4 * SINUSOIDS)
    phases = rng.uniform(-np.pi, np.pi, size=(2, rows, 1, SINUSOIDS))
    turn = 2 * np.pi * DOPPLER * now
    real = np.cos(turn * np.cos(angle) + phases[0]).sum(axis=2)
    imag = np.cos(turn * np.sin(angle) + phases[1]).sum(axis=2)
    scattered = (real + 1j * imag) / np.sqrt(SINUSOIDS)
    if k is None:
        return np.asarray(scattered)
    arrival, phase = rng.uniform(-np.pi, np.pi, size=(2, rows, 1))
    direct = np.exp(1j * (turn[:, 0] * np.cos(arrival) + phase))
    return np.asarray(np.sqrt(k / (k + 1)) * direct + np.sqrt(1 / (k + 1)) * scattered)


def multipath(signal: Complex, gains: NDArray[np.complex128]) -> Complex:
    """y[t] = sum_k h_k(t) x[t-k] with h_k(t) = sum_j magnitude_j gain_j(t) sinc(k - delay_j).

    ``gains`` [rows, paths, 2] holds each path's gain at the window's ends, a straight line between.
    """
    spread = np.sinc(np.arange(TAPS) - np.array(DELAYS)[:, None]) * np.array(MAGNITUDES)[:, None]
    taps = np.einsum("rpe,pk->ekr", gains, spread).astype(np.complex64)[..., None]
    along = np.linspace(0, 1, WINDOW, dtype=np.float32)
    total = np.zeros((len(signal), WINDOW), dtype=np.complex64)
    for k in range(TAPS):
        past = signal[:, TAPS - 1 - k : TAPS - 1 - k + WINDOW]
        total += (taps[0, k] + (taps[1, k] - taps[0, k]) * along) * past
    return total


def power(signal: Complex) -> NDArray[np.float32]:
    """Mean power of each row: [rows, 1]."""
    squares = signal.real**2 + signal.imag**2
    return np.asarray(squares.mean(axis=1, keepdims=True))


def white_noise(clean: Complex, snr: Real, rng: np.random.Generator) -> Complex:
    """Complex white Gaussian noise ``snr`` dB below each row's own mean power.

    The noise drawn is scaled so that its power in the row is exact, not only right on average:
    over 128 samples the draw alone would be off by 0.4 dB.
    """
    parts = rng.standard_normal((2, *clean.shape), dtype=np.float32)
    noise = (parts[0] + 1j * parts[1]).astype(np.complex64)
    wanted = power(clean) / 10 ** (snr[:, None] / 10)
    return np.asarray(noise * np.sqrt(wanted / power(noise)), dtype=np.complex64)
