"""Whatever is in a file: rows, or our own error in one line."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from data.small_tables import client_from_files
from fedgradnorm._errors import DataError, FedGradNormError
from fedgradnorm.data._files.encoding import Encoding

EXAMPLES = int(os.environ.get("FEDGRADNORM_FUZZ", "150"))
FUZZ = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALID = b"area,rooms,kind\n50,2,flat\n80.5,3,house\n65,2,flat\n120,5,house\n"
TASKS = (("classification", "kind"), ("regression", "rooms"))


def mutated(valid):
    """A valid file with a few stretches overwritten, cut out or put in."""
    edit = st.tuples(st.integers(0, len(valid)), st.integers(0, 8), st.binary(max_size=8))

    def apply(edits):
        data = valid
        for start, cut, new in edits:
            data = data[:start] + new + data[start + cut :]
        return data

    return st.lists(edit, min_size=1, max_size=4).map(apply)


def only_our_error(path, data, **source):
    path.write_bytes(data)
    for task, target in TASKS:
        columns = {} if path.suffix == ".npz" else {"targets": target}
        for on_bad in ("error", "drop"):
            try:
                loaded = client_from_files(
                    "a", task=task, train=path, on_bad=on_bad, standardize=True, **columns, **source
                )
            except DataError as error:
                assert "\n" not in str(error)  # noqa: PT017
            else:
                assert loaded.client.size >= 1


@FUZZ
@given(data=st.one_of(st.binary(max_size=200), mutated(VALID)))
def test_csv_bytes(tmp_path, data):
    only_our_error(tmp_path / "a.csv", data)


CELLS = st.one_of(
    st.text(max_size=6),
    st.floats().map(repr),
    st.integers(-5, 5).map(str),
    st.sampled_from(
        ["", '"', "a,b", "nan", "-inf", "1e999", "0x1", "1_0", "\u0663", "\r", "\0", ";"]
    ),
)


@FUZZ
@given(rows=st.lists(st.lists(CELLS, min_size=2, max_size=4), max_size=6))
def test_csv_text(tmp_path, rows):
    text = "area,rooms,kind\n" + "\n".join(",".join(row) for row in rows)
    only_our_error(tmp_path / "a.csv", text.encode("utf-8"))


DATED = (
    b"area,rooms,kind,when\n50,2,flat,2020-01-01\n,3,house,2020-01-02T03:04\n"
    b"65,2,,\n1,5,flat,2021\n"
)
COLUMNS = st.sampled_from(["area", "rooms", "kind", "when", "x"])
WORDS = st.sampled_from(["mean", "indicator", "hour", "elapsed", "flat", "2020-01-02", "x"])
VALUES = st.one_of(st.none(), st.booleans(), st.floats(-1, 2), WORDS, st.lists(WORDS, max_size=2))
TABLES = st.one_of(VALUES, st.lists(COLUMNS, max_size=2), st.dictionaries(COLUMNS, VALUES))
KEYS = st.sampled_from(["column", "time", "group", "test", "validation"])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "categories": TABLES,
        "dates": TABLES,
        "cyclic": TABLES,
        "missing": TABLES,
        "without": TABLES,
        "labels": TABLES,
        "above": VALUES,
        "rows": VALUES,
        "date_format": VALUES,
        "split": st.one_of(
            VALUES, st.dictionaries(KEYS, st.one_of(VALUES, COLUMNS, st.just(0.4)), max_size=3)
        ),
    },
)


@FUZZ
@given(
    data=st.one_of(st.just(DATED), mutated(DATED)),
    options=OPTIONS,
    task=st.sampled_from(["classification", "regression", "binary"]),
    on_bad=st.sampled_from(["error", "drop"]),
    target=COLUMNS,
)
def test_options_of_columns_and_splits(tmp_path, data, options, task, on_bad, target):
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    inputs = [name for name in ("area", "rooms", "kind", "when") if name != target]
    try:
        loaded = client_from_files(
            "a", task=task, train=path, on_bad=on_bad, inputs=inputs, targets=target, **options
        )
    except FedGradNormError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        encoding = loaded.client.encoding
        assert loaded.client.size >= 1
        assert encoding is None or Encoding.from_plain(encoding.plain()) == encoding


def npz_bytes():
    file = io.BytesIO()
    np.savez(file, x=np.arange(8.0).reshape(4, 2), y=np.array([0, 1, 0, 1]))
    return file.getvalue()


@FUZZ
@given(data=st.one_of(st.binary(max_size=100), mutated(npz_bytes())))
def test_npz_bytes(tmp_path, data):
    only_our_error(tmp_path / "a.npz", data)


def parquet_bytes():
    pd = pytest.importorskip("pandas")
    file = io.BytesIO()
    pd.read_csv(io.BytesIO(VALID)).to_parquet(file)
    return file.getvalue()


@settings(FUZZ, max_examples=max(EXAMPLES // 5, 1))
@given(data=st.one_of(st.binary(max_size=100), mutated(parquet_bytes())))
def test_parquet_bytes(tmp_path, data):
    only_our_error(tmp_path / "a.parquet", data)


def image_bytes(kind):
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, size=(9, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


@FUZZ
@given(
    data=st.one_of(
        st.binary(max_size=100), *(mutated(image_bytes(kind)) for kind in ("JPEG", "PNG", "BMP"))
    )
)
def test_image_bytes(tmp_path, data):
    (tmp_path / "good.png").write_bytes(image_bytes("PNG"))
    (tmp_path / "fuzzed").write_bytes(data)
    table = b"path,rooms,kind\ngood.png,2,flat\nfuzzed,3,house\ngood.png,4,house\n"
    only_our_error(tmp_path / "labels.csv", table, images=tmp_path, size=6)
