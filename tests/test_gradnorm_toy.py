"""GradNorm's own toy, in fewer steps than the example takes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import fedgradnorm as fgn

STEPS = 500


@pytest.fixture(scope="module")
def toy() -> ModuleType:
    return toy_module()


def toy_module() -> ModuleType:
    path = Path(__file__).parents[1] / "examples" / "gradnorm_toy.py"
    spec = importlib.util.spec_from_file_location("gradnorm_toy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_gradnorm_frees_the_quiet_task(toy: ModuleType) -> None:
    sigmas = toy.LOUDNESS[2]
    equal, _ = toy.train(sigmas, fgn.Equal(), seed=0, steps=STEPS)
    balanced, weights = toy.train(sigmas, fgn.GradNorm(gamma=0.12, lr=0.025), seed=0, steps=STEPS)
    quiet, loud = weights.values()
    assert loud < 0.1 < quiet
    assert balanced < 0.9 * equal
