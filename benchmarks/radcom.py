"""Measure the radio data: SNR accuracy, seconds to generate, seconds to read an HDF5 file.

    python benchmarks/radcom.py            # one to two minutes on 2 cores

Expect: no SNR off by more than 0.001 dB, 125,361 rows generated in 10 to 25 s, depending on what
else runs, and a file of as many datasets read in about half the time of h5py's high level.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from fedgradnorm.data.radcom._file import read
from fedgradnorm.data.radcom._generated import generate, received
from fedgradnorm.data.radcom._signal_set import MODULATIONS, SIGNALS, SNRS, WAVEFORMS, RadCom


def snr_table(rows: int = 300) -> None:
    """Label against SNR measured from clean and noisy signals, over all waveforms."""
    print(f"\nSNR in dB, {rows} rows of each of {len(WAVEFORMS)} waveforms")
    print("| label | measured, mean | largest error | blind estimate |\n|---|---|---|---|")
    rng = np.random.default_rng(0)
    for label in SNRS:
        measured = []
        for waveform in WAVEFORMS:
            clean, noise = received(waveform, np.full(rows, float(label)), rng)
            left = (clean + noise) - clean
            signal, rest = ((np.abs(part) ** 2).mean(axis=1) for part in (clean, left))
            measured.append(10 * np.log10(signal / rest))
        values = np.concatenate(measured)
        worst = np.abs(values - label).max()
        guess = f"{blind(label, rng, 10 * rows):.2f}" if label >= -6 else "-"
        print(f"| {label} | {values.mean():.4f} | {worst:.6f} | {guess} |")


def blind(label: float, rng: np.random.Generator, rows: int) -> float:
    """SNR from received AM rows alone: beyond 2.5 MHz they hold nothing but noise.

    Below -6 dB so little of the power is signal that thousands of rows do not fix it to 0.2 dB.
    """
    clean, noise = received(("amdsb", "AM radio"), np.full(rows, label), rng)
    taper = np.hanning(clean.shape[1])
    power = np.abs(np.fft.fft((clean + noise) * taper, axis=1)) ** 2 / (taper**2).sum()
    outside = power[:, np.abs(np.fft.fftfreq(clean.shape[1])) > 0.25].mean()
    return float(10 * np.log10((1 - outside) / outside))


def write(data: RadCom, path: Path) -> None:
    """The rows in RadComDynamic's own layout."""
    with h5py.File(path, "w") as file:
        for i in range(len(data)):
            names = MODULATIONS[data.modulation[i]], SIGNALS[data.signal[i]]
            file.create_dataset(str((*names, int(data.snr[i]), i)), data=data.iq[i])


def read_plainly(path: Path) -> int:
    with h5py.File(path, "r") as file:
        return len(np.stack([file[name][()] for name in file]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--samples", type=int, default=125_361)
    samples = options.parse_args().samples
    start = time.perf_counter()
    data = generate(samples)
    print(f"generate: {len(data)} rows in {time.perf_counter() - start:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "radcom.hdf5"
        write(data, path)
        for name, reader in (("one by one", read_plainly), ("read", read)):
            start = time.perf_counter()
            reader(path)
            print(f"HDF5, {name}: {time.perf_counter() - start:.1f} s")
    snr_table(min(300, samples // 50))


if __name__ == "__main__":
    main()
