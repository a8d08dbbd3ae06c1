"""The generated set: shares, determinism, SNR, and whether it can be learnt."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from scipy import stats

from fedgradnorm._errors import ConfigError
from fedgradnorm.data import radcom
from fedgradnorm.data.radcom import _signal_set
from fedgradnorm.data.radcom._generated import SHARES, cell_counts, received
from fedgradnorm.data.radcom._signal_set import ORIGINAL_SAMPLES, WINDOW

SNRS = np.array(_signal_set.SNRS, dtype=np.float64)


def to_complex(iq):
    return iq[:, :WINDOW] + 1j * iq[:, WINDOW:]


def mean_power(values):
    return (np.abs(values) ** 2).mean(axis=1)


def test_shares_of_the_original():
    counts = cell_counts(ORIGINAL_SAMPLES, np.random.default_rng(0), SHARES["original"])
    assert counts.shape == (9, 20)
    assert counts.sum() == ORIGINAL_SAMPLES
    names = [modulation for modulation, _ in _signal_set.WAVEFORMS]
    share = {
        name: sum(c for n, c in zip(names, counts.sum(1), strict=True) if n == name)
        for name in names
    }
    assert share["pulsed"] / ORIGINAL_SAMPLES == pytest.approx(0.447, abs=5e-4)
    assert (share["amdsb"] + share["amssb"]) / ORIGINAL_SAMPLES == pytest.approx(0.223, abs=5e-4)
    assert counts[:, SNRS < -4].sum() / ORIGINAL_SAMPLES == pytest.approx(0.4, abs=5e-4)
    bpsk = names.index("bpsk")
    assert counts[bpsk].sum() == 13_361
    assert (np.delete(counts, bpsk, axis=0) == 700).all()
    even = cell_counts(ORIGINAL_SAMPLES, np.random.default_rng(0), SHARES["even"]).sum(axis=1)
    assert sorted(even.tolist()) == [13_787] * 3 + [14_000] * 6


@pytest.mark.parametrize("samples", [1, 7, 60, 1000, 4321])
def test_shares_of_a_small_set(samples):
    counts = cell_counts(samples, np.random.default_rng(samples), SHARES["even"])
    assert counts.sum() == samples
    assert np.abs(counts.sum(axis=1) - samples / 9).max() <= 1 + 0.01 * samples
    assert np.abs(counts - samples / 180).max() <= 1 + 0.01 * samples


def test_record():
    data = radcom.generate(900, seed=3)
    assert data.iq.shape == (900, 256)
    assert (data.iq.dtype, data.snr.dtype) == (np.float32, np.float32)
    assert (data.modulation.dtype, data.signal.dtype) == (np.int64, np.int64)
    assert data.synthetic
    assert len(data) == 900
    assert np.isfinite(data.iq).all()
    np.testing.assert_allclose(mean_power(to_complex(data.iq)), 1, rtol=1e-4)
    pairs = {
        (_signal_set.MODULATIONS[m], _signal_set.SIGNALS[s])
        for m, s in zip(data.modulation, data.signal, strict=True)
    }
    assert pairs == set(_signal_set.WAVEFORMS)
    assert set(data.snr.tolist()) == set(SNRS.tolist())


def test_same_seed_same_rows():
    one, same, other = (radcom.generate(400, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.iq, same.iq)
    np.testing.assert_array_equal(one.modulation, same.modulation)
    assert not np.array_equal(one.iq, other.iq)


def test_rows_are_shuffled():
    half = radcom.generate(2000).modulation[:1000]
    assert np.bincount(half, minlength=6).min() > 50


def test_progress_and_label(caplog):
    steps = []
    with caplog.at_level(logging.INFO):
        radcom.generate(100, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (100, 100)
    assert "SYNTHETIC" in caplog.text


@pytest.mark.parametrize("bad", [{"samples": 0}, {"samples": 2.5}, {"samples": True}, {"seed": -1}])
def test_settings_out_of_range(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        radcom.generate(**bad)


# Signal and noise


@pytest.mark.parametrize("waveform", _signal_set.WAVEFORMS, ids="-".join)
@pytest.mark.parametrize("channel", [True, False])
def test_snr_is_the_label(waveform, channel):
    labels = np.repeat(SNRS, 20)
    clean, noise = received(waveform, labels, np.random.default_rng(1), channel=channel)
    noisy = clean + noise
    measured = 10 * np.log10(mean_power(clean) / mean_power(noisy - clean))
    assert np.abs(measured - labels).max() < 0.2


@pytest.mark.parametrize("label", [snr for snr in _signal_set.SNRS if snr >= -6])
def test_snr_measured_blindly(label):
    """From the received rows alone: beyond 2.5 MHz a row of AM radio holds nothing but noise."""
    clean, noise = received(("amdsb", "AM radio"), np.full(600, label), np.random.default_rng(3))
    taper = np.hanning(WINDOW)
    power = np.abs(np.fft.fft((clean + noise) * taper, axis=1)) ** 2 / (taper**2).sum()
    noise_power = power[:, np.abs(np.fft.fftfreq(WINDOW)) > 0.25].mean()
    assert 10 * np.log10((1 - noise_power) / noise_power) == pytest.approx(label, abs=0.2)


def test_noise_is_white_gaussian_and_independent_of_the_signal():
    clean, noise = received(("bpsk", "Satcom"), np.zeros(500), np.random.default_rng(2))
    noise = noise / np.sqrt(mean_power(noise))[:, None]
    clean = clean / np.sqrt(mean_power(clean))[:, None]
    assert stats.kstest(np.sqrt(2) * noise.real[::5].ravel(), "norm").pvalue > 1e-3
    spectrum = (np.abs(np.fft.fft(noise, axis=1)) ** 2).mean(axis=0) / WINDOW
    assert np.abs(spectrum - 1).max() < 6 / np.sqrt(len(noise))
    assert np.abs((clean.conj() * noise).mean()) < 5 / np.sqrt(noise.size)
    assert np.abs((noise * noise).mean()) < 5 / np.sqrt(noise.size)


def test_loudness_says_nothing_about_snr():
    data = radcom.generate(2000)
    assert np.corrcoef((data.iq**2).mean(axis=1), data.snr)[0, 1] == pytest.approx(0, abs=0.1)


# Can it be learnt?


@pytest.fixture(scope="module")
def features():
    """Logarithms of spectrum and sorted envelope at 10 dB or more, and the nine waveforms."""
    data = radcom.generate(12_000, seed=11)
    data_rows = data.snr >= 10
    values = to_complex(data.iq[data_rows])
    spectrum = np.abs(np.fft.fft(values, axis=1))
    names = np.stack([data.modulation, data.signal], axis=1)[data_rows]
    table = np.concatenate([np.log(spectrum + 0.1), 3 * np.sort(np.abs(values), axis=1)], axis=1)
    return table, np.unique(names, axis=0, return_inverse=True)[1].ravel()


def test_nearest_centroid_tells_the_nine_waveforms_apart(features):
    x, y = features
    half = len(x) // 2
    centres = np.stack([x[:half][y[:half] == kind].mean(axis=0) for kind in range(9)])
    nearest = ((x[half:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    recall = [(nearest[y[half:] == kind] == kind).mean() for kind in range(9)]
    assert np.mean(recall) > 0.75  # chance: 0.11
    assert min(recall) > 0.4
