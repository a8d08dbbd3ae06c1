"""The attack: a plain update gives a row away; the sum over clients and a noised update do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "gradient_inversion.py"


def test_only_the_plain_update_shows_the_face(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("gradient_inversion", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.attack()
    face, plain, summed, noised = (alike for _, alike in found.values())
    assert face == pytest.approx(1.0)
    assert plain > 0.999
    assert summed < 0.5
    assert abs(noised) < 0.1
    module.draw(found, tmp_path / "faces.png")
    assert (tmp_path / "faces.png").read_bytes().startswith(b"\x89PNG")
