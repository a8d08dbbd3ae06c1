"""The contact sheet of radio signals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedgradnorm._report.figures.signal_sheet import signal_sheet
from fedgradnorm.data import radcom


@pytest.mark.parametrize("synthetic", [True, False])
def test_says_whether_it_is_synthetic(tmp_path, monkeypatch, synthetic):
    titles = []
    monkeypatch.setattr(Figure, "suptitle", lambda _self, text, **_: titles.append(text))
    data = dataclasses.replace(radcom.generate(400), synthetic=synthetic)
    path = signal_sheet(data, tmp_path / "new" / "sheet.png")
    with Image.open(path) as image:
        assert image.size[1] > image.size[0] > 800
    assert ("SYNTHETIC" in titles[0]) is synthetic


def test_waveforms_without_rows_are_said_to_be_missing(tmp_path):
    data = radcom.generate(200)
    only = data.rows("bpsk", "Satcom")
    part = radcom.RadCom(
        data.iq[only], data.modulation[only], data.signal[only], data.snr[only], True
    )
    assert signal_sheet(part, tmp_path / "sheet.png", snr=0.0).stat().st_size > 10_000
    assert np.isfinite(part.iq).all()
