"""A contact sheet of radio signals: each waveform in time, in frequency, and as I against Q."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm.data.radcom._signal_set import SAMPLE_RATE, WAVEFORMS, WINDOW, RadCom

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Complex = NDArray[np.complex64]

AVERAGED = 100  # windows in the mean spectrum: enough to see its shape through the noise
FLOOR_DB = -45.0
IN_PHASE, QUADRATURE, MEAN, POINTS = "#1f6fb4", "#e07b28", "#999999", "#5b3d8f"


def signal_sheet(data: RadCom, path: Path, snr: float = 18.0) -> Path:
    """Draw a row for each waveform: time trace, spectrum and constellation; return the path.

    Shown are windows at the SNR nearest to ``snr`` that the waveform has. The title says whether
    the signals are synthetic.

    Traces and constellation are of one window as received. Its spectrum (Hann window, dB below the
    peak) lies over the mean of up to 100 windows.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 2.1 * len(WAVEFORMS) + 1.1), layout="constrained")
    kind = "SYNTHETIC signals, not RadComDynamic" if data.synthetic else "RadComDynamic"
    figure.suptitle(f"{kind}: the nine waveforms near {snr:g} dB SNR", fontsize=15, weight="bold")
    panels = figure.subplots(len(WAVEFORMS), 3, width_ratios=(2.6, 1.8, 1))
    for row, pair in zip(panels, WAVEFORMS, strict=True):
        windows, shown = _windows(data, pair, snr)
        if len(windows) == 0:
            for axes in row:
                axes.set_axis_off()
            row[0].text(0.02, 0.5, f"{pair[0]} | {pair[1]}: no rows", transform=row[0].transAxes)
            continue
        _trace(row[0], windows[0], f"{pair[0]} | {pair[1]}  ({shown:g} dB)")
        _spectrum(row[1], windows)
        _constellation(row[2], windows[0])
    _legends(panels)
    for axes, label in zip(panels[-1], ("time (µs)", "frequency (MHz)", "I"), strict=True):
        axes.set_xlabel(label)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    return path


def _legends(panels: Any) -> None:
    """Once for each column, above the first row that has lines, where it hides nothing."""
    for column in panels.T[:2]:
        for axes in column:
            if axes.lines:
                axes.legend(
                    loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, ncols=3, frameon=False,
                    borderaxespad=0.1,
                )  # fmt: skip
                break


def _windows(data: RadCom, pair: tuple[str, str], snr: float) -> tuple[Complex, float]:
    """Up to ``AVERAGED`` windows of a waveform as complex numbers, and their SNR."""
    rows = data.rows(*pair)
    if len(rows) == 0:
        return np.empty((0, WINDOW), dtype=np.complex64), float("nan")
    there = data.snr[rows]
    nearest = float(there[np.abs(there - snr).argmin()])
    iq = np.asarray(data.iq[rows[there == nearest][:AVERAGED]])
    return (iq[:, :WINDOW] + 1j * iq[:, WINDOW:]).astype(np.complex64), nearest


def _trace(axes: Any, window: Complex, title: str) -> None:
    time = np.arange(WINDOW) * (1e6 / SAMPLE_RATE)
    axes.plot(time, np.abs(window), color=MEAN, linewidth=0.8, label="envelope")
    axes.plot(time, window.real, color=IN_PHASE, linewidth=1.2, label="I")
    axes.plot(time, window.imag, color=QUADRATURE, linewidth=1.2, label="Q")
    axes.set_title(title, loc="left", fontsize=10, weight="bold")
    axes.set_xlim(0, time[-1])
    axes.margins(y=0.12)
    axes.grid(alpha=0.3)


def _spectrum(axes: Any, windows: Complex) -> None:
    frequency = np.fft.fftshift(np.fft.fftfreq(WINDOW, 1e6 / SAMPLE_RATE))
    lines = np.abs(np.fft.fftshift(np.fft.fft(windows * np.hanning(WINDOW), axis=1), axes=1)) ** 2
    for values, style in (
        (lines.mean(axis=0), {"color": MEAN, "linewidth": 2.0, "label": "mean of windows"}),
        (lines[0], {"color": IN_PHASE, "linewidth": 1.0, "label": "this window"}),
    ):
        level = 10 * np.log10(np.maximum(values / values.max(), 1e-12))
        axes.plot(frequency, level, **style)
    axes.set_ylim(FLOOR_DB, 3)
    axes.set_xlim(frequency[0], -frequency[0])
    axes.set_ylabel("dB")
    axes.grid(alpha=0.3)


def _constellation(axes: Any, window: Complex) -> None:
    axes.plot(window.real, window.imag, color=MEAN, linewidth=0.4, alpha=0.6)
    axes.scatter(window.real, window.imag, s=5, color=POINTS, zorder=2)
    reach = 1.1 * float(np.abs(window).max())
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_aspect("equal")
    axes.set_ylabel("Q")
    axes.grid(alpha=0.3)
