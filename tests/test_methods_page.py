"""The page on methods: its example runs, and no method is missing."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from fedgradnorm import Weighting
from fedgradnorm._methods import METHODS
from weighting.laws import bound, draw, played

PAGE = (Path(__file__).parents[1] / "docs" / "methods.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def registry():
    """The methods as they are; what a test registers is gone afterwards."""
    with METHODS.restored():
        yield


def test_the_example_of_a_method_of_ones_own_runs(registry) -> None:
    names: dict[str, object] = {}
    exec("\n".join(BLOCKS), names)
    mine = names["SmoothLoss"]
    assert issubclass(mine, Weighting)
    for weights in played(bound(mine), draw(0, rounds=4)):
        assert (weights > 0).all()


def test_the_example_is_ten_lines() -> None:
    (example,) = [block for block in BLOCKS if "class SmoothLoss" in block]
    body = example.partition("class ")[2].strip().splitlines()
    assert 5 <= len(body) <= 10


def test_every_method_is_in_a_table_of_the_page() -> None:
    wanted = {METHODS.module_of(name).rpartition(".")[2] for name in METHODS}
    assert wanted == set(re.findall(r"<!-- generated: methods (\w+) -->", PAGE))


def test_every_source_is_a_link() -> None:
    papers = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "_ext" / "papers.py"))
    for method in METHODS.values():
        found = papers["NAMED"].findall(method.source)
        assert found or re.match("baseline|this package", method.source), method.source
        assert papers["linked"](method.source).count("](https://") == len(found)


def test_the_readme_does_not_promise_too_many() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert len(METHODS) >= int(re.search(r"\*\*Methods\*\*: more than (\d+)", readme)[1])
