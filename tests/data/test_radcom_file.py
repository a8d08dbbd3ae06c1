"""RadComDynamic's file: written here in exactly its format, read back, and damaged in many ways."""

from __future__ import annotations

import logging

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data import radcom
from fedgradnorm.data.radcom import _signal_set
from fedgradnorm.data.radcom._file import Key, parse_key, read

GOOD = str(("bpsk", "Satcom", -20, 0))


def write(path, rows):
    """One dataset a row, named by the text of its tuple."""
    with h5py.File(path, "w") as file:
        for key, values in rows:
            file.create_dataset(key, data=values)
    return path


def original(per_cell=1):
    rng = np.random.default_rng(0)
    return [
        (str((*pair, snr, index)), rng.normal(size=256).astype(np.float32))
        for pair in _signal_set.WAVEFORMS
        for snr in _signal_set.SNRS
        for index in range(per_cell)
    ]


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "RadComDynamic.hdf5", original())


def check_one_line(error):
    assert str(error)
    assert "\n" not in str(error)


# Files


def test_round_trip(file):
    data = read(file)
    assert len(data) == 180
    assert not data.synthetic
    rows = {parse_key(key): values for key, values in original()}
    for i in range(len(data)):
        key = Key(int(data.modulation[i]), int(data.signal[i]), float(data.snr[i]), 0)
        np.testing.assert_array_equal(data.iq[i], rows.pop(key))
    assert not rows
    assert (data.iq.dtype, data.modulation.dtype, data.snr.dtype) == (
        np.float32,
        np.int64,
        np.float32,
    )


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "<f2", "<i2"])
@pytest.mark.parametrize("shape", [(256,), (2, 128), (1, 256)])
def test_number_types_and_shapes(tmp_path, kind, shape):
    values = np.arange(-128, 128)
    data = read(write(tmp_path / "f.h5", [(GOOD, values.astype(kind).reshape(shape))]))
    np.testing.assert_array_equal(data.iq[0], values)


def test_compressed_chunks(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset(GOOD, data=np.arange(256.0), chunks=(64,), compression="gzip")
    np.testing.assert_array_equal(read(tmp_path / "f.h5").iq[0], np.arange(256))


def test_progress(file):
    steps = []
    read(file, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (180, 180)


def test_odd_pairs_are_kept_and_counted(tmp_path, caplog):
    path = write(tmp_path / "f.h5", [("('bpsk', 'AM radio', 0, 0)", np.zeros(256))])
    assert len(read(path)) == 1
    assert "1 rows" in caplog.text


BAD = {
    "key that does not parse": ("notes", np.zeros(256), "does not parse"),
    "unknown name": ("('chirp', 'Satcom', 0, 0)", np.zeros(256), "unknown modulation 'chirp'"),
    "too short": ("('ask', 'short-range', 0, 0)", np.zeros(255), "shape .255,., expected 256"),
    "too long": ("('ask', 'short-range', 0, 0)", np.zeros((256, 256)), "expected 256"),
    "scalar": ("('ask', 'short-range', 0, 0)", 1.0, "expected 256"),
    "nothing": ("('ask', 'short-range', 0, 0)", h5py.Empty("f4"), "expected 256"),
    "NaN": ("('ask', 'short-range', 0, 0)", np.r_[np.zeros(255), np.nan], "value 255 is nan"),
    "infinite": ("('ask', 'short-range', 0, 0)", np.full(256, 1e300), "value 0 is inf"),
    "text": ("('ask', 'short-range', 0, 0)", np.full(256, b"1"), "not a readable dataset"),
    "record": ("('ask', 'short-range', 0, 0)", np.zeros(256, "f4,f4"), "not a readable dataset"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_row(name, tmp_path, caplog):
    key, values, message = BAD[name]
    path = write(tmp_path / "f.h5", [(GOOD, np.ones(256)), (key, values)])
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert key in str(caught.value)
    assert "on_bad" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        data = read(path, on_bad="drop")
        read(path, on_bad="drop")
    assert len(data) == 1
    assert len(data.dropped) == 1
    assert key in data.dropped[0]
    assert "1 bad rows left out" in caplog.text
    assert key in caplog.text


def test_many_bad_rows_are_one_line_in_the_log(tmp_path, caplog):
    rows = [(f"('ask', 'short-range', 0, {i})", np.full(256, np.nan)) for i in range(1, 30)]
    path = write(tmp_path / "f.h5", [(GOOD, np.ones(256)), *rows, ("notes", np.ones(256))])
    with caplog.at_level(logging.WARNING):
        read(path, on_bad="drop")
    (record,) = caplog.records
    assert "30 bad rows left out: 29 like" in record.getMessage()
    assert "value 0 is nan" in record.getMessage()
    assert "key notes" in record.getMessage()


def test_groups_and_links(tmp_path):
    write(tmp_path / "other.h5", [(GOOD, np.ones(256))])
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset(GOOD, data=np.ones(256))
        file.create_group("('ask', 'short-range', 0, 1)")
        file["('ask', 'short-range', 0, 2)"] = h5py.SoftLink(GOOD)
        file["('ask', 'short-range', 0, 3)"] = h5py.ExternalLink("other.h5", GOOD)
    data = read(tmp_path / "f.h5", on_bad="drop")
    assert len(data) == 1
    assert sorted("a link" in line for line in data.dropped) == [False, True, True]


def test_no_usable_row(tmp_path):
    with pytest.raises(DataError, match="none of its 1 entries"):
        read(write(tmp_path / "f.h5", [("notes", 1.0)]), on_bad="drop")
    with pytest.raises(DataError, match="none of its 0 entries"):
        read(write(tmp_path / "empty.h5", []))


def test_not_a_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "missing.h5")
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path)
    (tmp_path / "text.h5").write_text("not HDF5")
    with pytest.raises(DataError, match="not an HDF5 file"):
        read(tmp_path / "text.h5")


def test_cut_short(file):
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(DataError, match="cut short"):
        read(file)


def test_unknown_on_bad(file):
    with pytest.raises(ConfigError, match="on_bad"):
        read(file, on_bad="ignore")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    flips=st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), max_size=6),
    cut=st.none() | st.integers(0, 6000),
)
def test_damaged_files_raise_nothing_else(tmp_path, flips, cut):
    path = write(tmp_path / "f.h5", original()[::60])
    content = bytearray(path.read_bytes())[:cut]
    for place, value in flips:
        if place < len(content):
            content[place] = value
    path.write_bytes(content)
    for on_bad in ("error", "drop"):
        try:
            data = read(path, on_bad=on_bad)
        except DataError as error:
            check_one_line(error)
        else:
            assert np.isfinite(data.iq).all()


# Cache and clients


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRADNORM_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_prepare_reads_once(file, kept, caplog):
    steps = []
    first = radcom.prepare(file, progress=lambda *at: steps.append(at))
    assert steps
    steps.clear()
    second = radcom.prepare(file, progress=lambda *at: steps.append(at))
    assert not steps
    assert not second.synthetic
    for name in ("iq", "modulation", "signal", "snr"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    write(file, original(2))
    assert len(radcom.prepare(file)) == 360


def test_dropped_rows_are_listed_again_from_the_cache(tmp_path, kept, caplog):
    path = write(tmp_path / "f.h5", [(GOOD, np.ones(256)), ("notes", 1.0)])
    with pytest.raises(DataError, match="notes"):
        radcom.prepare(path)
    for _ in range(2):
        caplog.clear()
        assert len(radcom.prepare(path, on_bad="drop")) == 1
        assert "notes" in caplog.text


def test_clients_from_a_file(file, kept, monkeypatch):
    clients = radcom.clients(source=file, tasks=radcom.TASKS)
    assert [client.size for client in clients] == [36] * 4
    assert [client.size for client in radcom.clients(source=str(file), samples=90)] == [24] * 3
    monkeypatch.setenv("FEDGRADNORM_DATA", str(file.parent))
    assert radcom.clients(source=file.name, tasks=["snr"])[0].size == 144
    with pytest.raises(DataError, match=r"absent\.h5: no such file"):
        radcom.clients(source="absent.h5")


def test_the_over_the_air_release_adds_three_classes_and_windows_get_unit_power(tmp_path):
    rng = np.random.default_rng(0)
    pairs = [*_signal_set.WAVEFORMS, ("GFSK", "Bluetooth"), ("DSSS-CCK", "IEEE802.11bg")]
    rows = [
        (str((*pair, snr, 0)), 0.006 * rng.normal(size=256))
        for pair in pairs
        for snr in (-10, -2, 4, 10)
    ]
    path = write(tmp_path / "air.hdf5", rows)
    modulation, signal = radcom.clients(source=path, tasks=["modulation", "signal"])
    assert (modulation.task.outputs, signal.task.outputs) == (9, 11)
    assert modulation.labels[6:] == ("gfsk", "dsss-oqpsk", "dsss-cck")
    for level, power in (("unit", 1.0), ("stored", 2 * 0.006**2)):
        (client,) = radcom.clients(source=path, tasks=["snr"], level=level)
        found = 2 * client.train[0].double().square().mean(dim=1)
        assert found.mean().item() == pytest.approx(power, rel=0.1)
        assert level == "stored" or found.std() < 1e-6
