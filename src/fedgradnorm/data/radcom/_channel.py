"""The published channel: GNU Radio's dynamic channel model with RadComDynamic's values.

The order is: sample-rate offset, carrier offset, fading over several paths, noise. Every row is a
window at a random moment of one endless transmission. So each slow process starts at a draw from
its long-run distribution, and then moves as published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgradnorm.data.radcom._signal_set import SAMPLE_RATE, WINDOW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Real = NDArray[np.float64]
    Complex = NDArray[np.complex64]

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
