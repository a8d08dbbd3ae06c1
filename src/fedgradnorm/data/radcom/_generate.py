"""Labelled radio windows without a download: the nine waveforms through the published channel."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedgradnorm._errors import choose
from fedgradnorm._memory import check_draw
from fedgradnorm.data.radcom._channel import SAMPLES_NEEDED, apply_channel, power, white_noise
from fedgradnorm.data.radcom._signal_set import (
    MODULATIONS,
    ORIGINAL_SAMPLES,
    SIGNALS,
    SNRS,
    WAVEFORMS,
    WINDOW,
    Progress,
    RadCom,
)
from fedgradnorm.data.radcom._signals import MAKERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
