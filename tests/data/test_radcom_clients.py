"""Clients made of radio signals."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

from fedgradnorm import ConfigError, DataError
from fedgradnorm.data import radcom


def test_the_papers_clients():
    modulation, signal, anomaly = radcom.clients(samples=3000)
    assert [c.name for c in (modulation, signal, anomaly)] == ["modulation", "signal", "anomaly"]
    assert [c.task.outputs for c in (modulation, signal, anomaly)] == [6, 8, 2]
    assert [c.size for c in (modulation, signal, anomaly)] == [800] * 3
    assert all(
        len(c.test[0]) == 200 and c.validation is None for c in (modulation, signal, anomaly)
    )
    rows = np.concatenate(
        [np.concatenate([c.train[0], c.test[0]]) for c in (modulation, signal, anomaly)]
    )
    assert len(np.unique(rows, axis=0)) == 3000  # every row once: disjoint, and none left out


def test_anomaly_is_strictly_below():
    kinds = {
        below: radcom.clients(samples=3600, tasks=["anomaly"], anomaly_below=below)[0]
        for below in (-4, -3.9)
    }
    share = {below: float(c.train[1].double().mean()) for below, c in kinds.items()}
    assert share[-4] == pytest.approx(8 / 20, abs=0.02)
    assert share[-3.9] == pytest.approx(9 / 20, abs=0.02)


def test_snr_client_is_loud():
    (client,) = radcom.clients(samples=500, tasks=["snr"])
    assert client.task.kind == "regression"
    assert client.train[1].shape == (400, 1)
    assert client.task.loss(client.train[1] * 0, client.train[1]) > 100


def test_shared_allocation_and_validation():
    one, two = radcom.clients(
        samples=500, tasks=["signal", "snr"], allocation="shared", validation_share=0.1
    )
    assert one.size == two.size == 350
    assert len(one.validation[0]) == 50
    for split in ("train", "validation", "test"):
        assert getattr(one, split)[0].data_ptr() == getattr(two, split)[0].data_ptr()


def test_loss_scale_and_determinism():
    scaled = radcom.clients(samples=300, tasks=["snr"], loss_scale={"snr": 0.5})[0]
    plain = radcom.clients(samples=300, tasks=["snr"])[0]
    assert (scaled.task.loss_scale, plain.task.loss_scale) == (0.5, 1.0)
    np.testing.assert_array_equal(scaled.train[0], plain.train[0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tasks": ["modulatoin"]}, "did you mean 'modulation'"),
        ({"tasks": []}, "at least one"),
        ({"tasks": ["snr", "snr"]}, "twice"),
        ({"test_share": 1.0}, "test_share"),
        ({"validation_share": -0.1}, "validation_share"),
        ({"test_share": float("nan")}, "test_share"),
        ({"anomaly_below": float("nan")}, "anomaly_below must be a finite number, not nan"),
        ({"loss_scale": {"snr": 2.0}}, "loss_scale"),
        ({"allocation": "split"}, "allocation"),
        ({"samples": -5}, "samples"),
    ],
)
def test_bad_settings(bad, message):
    with pytest.raises(ConfigError, match=message):
        radcom.clients(**{"samples": 300, **bad})


@pytest.mark.parametrize("samples", [1, 2, 3, 9])
def test_too_few_rows(samples):
    with pytest.raises(DataError, match="rows"):
        radcom.clients(samples=samples)


def test_generated_rows_are_kept_only_on_request(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FEDGRADNORM_CACHE", str(tmp_path / "kept"))
    plain = radcom.clients(samples=200, tasks=["signal"])[0]
    assert not (tmp_path / "kept").exists()
    with caplog.at_level(logging.INFO):
        kept = [radcom.clients(samples=200, tasks=["signal"], cache=True)[0] for _ in range(2)]
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert "SYNTHETIC radio signals from the cache" in caplog.text
    for client in kept:
        np.testing.assert_array_equal(client.train[0], plain.train[0])
    assert radcom.prepare(samples=200).synthetic


def test_loads_neither_plotting_nor_h5py():
    heavy = "{'matplotlib', 'h5py', 'scipy'}"
    code = f"import sys, fedgradnorm.data.radcom; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
