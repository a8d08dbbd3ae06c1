"""Archives with bytes changed anywhere: in names, sizes, annotations, pictures, the index."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgradnorm import DataError
from fedgradnorm.data import mtfl
from mtfl_archive import mtfl_files, write_zip

FILES = mtfl_files(train=2, test=1)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=4)), max_size=4))
def test_a_fuzzed_archive_gives_rows_or_our_own_error(changes):
    with tempfile.TemporaryDirectory() as name:
        path = write_zip(Path(name) / "MTFL.zip", FILES)
        content = bytearray(path.read_bytes())
        for place, new in changes:
            start = place % len(content)
            content[start : start + len(new)] = new
        path.write_bytes(content)
        try:
            data = mtfl.prepare(path, crop="whole", cache=Path(name) / "cache")
        except DataError as error:
            message = str(error)
        else:
            message = "read"
            assert data.train.images.shape[1:] == (1, 40, 40)
        assert len(message.splitlines()) == 1
