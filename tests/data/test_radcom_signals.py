"""The published channel and the nine waveforms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedgradnorm.data.radcom import _generated as radcom_channel
from fedgradnorm.data.radcom import _signal_set
from fedgradnorm.data.radcom._generated import MAKERS, pulsed, root_raised_cosine
from fedgradnorm.data.radcom._signal_set import WINDOW


def mean_power(values):
    return (np.abs(values) ** 2).mean(axis=1)


# The channel


def test_walks_stay_in_bounds_and_move_as_published():
    walk = radcom_channel.bounded_walk(np.random.default_rng(0), 4000, WINDOW, 0.05, 250.0)
    assert np.abs(walk).max() <= 250
    assert stats.kstest(walk[:, 0], stats.uniform(-250, 500).cdf).pvalue > 1e-3
    assert np.diff(walk, axis=1).std() == pytest.approx(0.05, rel=0.02)


def test_interpolator_against_a_tone():
    places = np.arange(200.0)
    at = 50.37 + np.arange(100.0)[None]
    for frequency in (-0.3, -0.05, 0.0, 0.12, 0.3):  # cycles a sample: up to 3 MHz
        tone = np.exp(2j * np.pi * frequency * places)[None].astype(np.complex64)
        wanted = np.exp(2j * np.pi * frequency * at)
        assert np.abs(radcom_channel.interpolate(tone, at) - wanted).max() < 0.02


def test_fading_is_rician():
    gain = radcom_channel.fading(np.random.default_rng(0), 40_000, radcom_channel.RICIAN_K)[:, 0]
    squared = np.abs(gain) ** 2
    assert squared.mean() == pytest.approx(1, rel=0.02)
    # A Rician power has variance (1 + 2K)/(1 + K)^2; N sinusoids in place of a Gaussian scatter
    # take 3/(4N) of the 1.
    k, n = radcom_channel.RICIAN_K, radcom_channel.SINUSOIDS
    assert squared.var() == pytest.approx((2 * k + 1 - 3 / (4 * n)) / (1 + k) ** 2, rel=0.03)


def test_fading_without_a_direct_wave_is_nearly_rayleigh():
    squared = np.abs(radcom_channel.fading(np.random.default_rng(1), 40_000, None)[:, 0]) ** 2
    assert squared.mean() == pytest.approx(1, rel=0.02)
    assert squared.var() == pytest.approx(1 - 3 / (4 * radcom_channel.SINUSOIDS), rel=0.03)


def test_fading_moves_no_faster_than_its_doppler():
    ends = radcom_channel.fading(np.random.default_rng(2), 2000, 3.0)
    most = (
        2 * np.pi * radcom_channel.DOPPLER * WINDOW / 10e6 * np.sqrt(2 * radcom_channel.SINUSOIDS)
    )
    assert 0 < np.abs(ends[:, 1] - ends[:, 0]).max() < most


def test_multipath_against_convolution():
    rng = np.random.default_rng(3)
    length = WINDOW + radcom_channel.TAPS - 1
    signal = (rng.normal(size=(3, length)) + 1j * rng.normal(size=(3, length))).astype(np.complex64)
    gains = np.repeat(rng.normal(size=(3, 3, 1)) + 1j * rng.normal(size=(3, 3, 1)), 2, axis=2)
    got = radcom_channel.multipath(signal, gains)
    for row in range(3):
        taps = [
            sum(
                magnitude * gain * np.sinc(k - delay)
                for magnitude, gain, delay in zip(
                    (1, 0.5, 0.5), gains[row, :, 0], (0.2, 0.3, 0.1), strict=True
                )
            )
            for k in range(5)
        ]
        np.testing.assert_allclose(got[row], np.convolve(signal[row], taps, "valid"), atol=1e-4)


def test_channel_turns_the_phase_anywhere():
    ones = np.ones((4000, radcom_channel.SAMPLES_NEEDED), dtype=np.complex64)
    out = radcom_channel.apply_channel(ones, np.random.default_rng(4))
    assert out.shape == (4000, WINDOW)
    assert stats.kstest(np.angle(out[:, 0]), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-3
    turn = np.angle((out[:, 1:] * out[:, :-1].conj()).sum(axis=1)) * 10e6 / (2 * np.pi)
    assert np.median(np.abs(turn)) == pytest.approx(125, rel=0.1)  # uniform within +-250 Hz
    assert np.quantile(np.abs(turn), 0.99) < 260  # a deep fade may turn faster, by its Doppler


# The waveforms


@pytest.mark.parametrize("waveform", _signal_set.WAVEFORMS, ids="-".join)
def test_every_window_has_signal(waveform):
    sent = MAKERS[waveform](np.random.default_rng(0), 3000, WINDOW)
    assert sent.shape == (3000, WINDOW)
    assert sent.dtype == np.complex64
    assert mean_power(sent).min() > 1e-3


def test_a_gap_wider_than_the_window_is_refused():
    with pytest.raises(ValueError, match="between two pulses"):
        pulsed(width=(1.0, 2.0), interval=(10.0, 14.0))


def test_pulse_trains_differ_in_width_and_duty():
    radars = [pair for pair in _signal_set.WAVEFORMS if pair[0] == "pulsed"]
    width, duty = {}, {}
    for pair in radars:
        on = np.abs(MAKERS[pair](np.random.default_rng(0), 400, 4000)) > 0.5
        rises = (np.diff(on.astype(int), axis=1) == 1).sum()
        width[pair[1]], duty[pair[1]] = on.sum() / rises / 10, on.mean()
    assert width["Airborne-range"] == pytest.approx(0.4, abs=0.05)
    assert width["Airborne-detection"] == pytest.approx(1.0, abs=0.05)
    assert width["Air-Ground-MTI"] == pytest.approx(2.0, abs=0.1)
    assert width["Ground mapping"] == pytest.approx(5.0, abs=0.25)
    assert duty["Airborne-range"] == pytest.approx(0.067, abs=0.01)
    assert duty["Ground mapping"] == pytest.approx(0.39, abs=0.03)


def test_envelopes_and_sidebands():
    rng = np.random.default_rng(0)
    make = {pair[0]: MAKERS[pair] for pair in _signal_set.WAVEFORMS}
    np.testing.assert_allclose(np.abs(make["fmcw"](rng, 50, WINDOW)), 1, atol=1e-5)
    assert (make["amdsb"](rng, 50, WINDOW).real > 0).all()
    single = np.abs(np.fft.fft(make["amssb"](rng, 50, 4096), axis=1)) ** 2
    upper, lower = single[:, 1:2048].sum(axis=1), single[:, 2049:].sum(axis=1)
    assert (np.maximum(upper, lower) / np.minimum(upper, lower)).min() > 30
    values = make["bpsk"](rng, 50, WINDOW)
    assert np.abs(values.imag).max() == 0
    assert np.abs(values.real.mean()) < 0.1


def test_sweep_has_no_phase_jumps():
    sent = MAKERS["fmcw", "Radar-Altimeter"](np.random.default_rng(0), 200, 2000)
    assert np.abs(np.angle(sent[:, 1:] * sent[:, :-1].conj())).max() < 2 * np.pi * 0.41


def test_root_raised_cosine_is_nyquist_after_its_match():
    step = 1 / 64
    shape = root_raised_cosine(np.arange(-40, 40, step))
    raised = np.convolve(shape, shape) * step
    centre = len(raised) // 2 + 1
    at_symbols = raised[centre % 64 :: 64]
    peak = np.abs(at_symbols).argmax()
    assert at_symbols[peak] == pytest.approx(1, abs=1e-2)
    assert np.abs(np.delete(at_symbols, peak)).max() < 1e-2
    assert np.isfinite(root_raised_cosine(np.array([0.0, 1 / 1.4, -1 / 1.4]))).all()
