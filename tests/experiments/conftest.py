"""A run that nobody stopped, to compare with."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.killed_training import go


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert go(folder).finished
    return folder
