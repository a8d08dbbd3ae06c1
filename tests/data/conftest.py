"""What the tests of tables share."""

from __future__ import annotations

import pytest

from data.small_tables import HOUSES, write


@pytest.fixture
def houses(tmp_path):
    return write(tmp_path / "houses.csv", HOUSES)
