"""A method has one colour: everywhere, whoever else is there, for colour-blind readers too."""

import itertools

import numpy as np
import pytest

from fedgradnorm._methods import METHODS
from fedgradnorm._report.colours import (
    COLOURS,
    ON_DARK,
    ORDER,
    STROKES,
    TASKS,
    TASKS_ON_DARK,
    Look,
    looks,
)

# How linear RGB looks without one kind of cone: Machado, Oliveira, Fernandes 2009, severity 1.
READERS = {
    "usual": np.eye(3),
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def seen(colour: str, reader: str) -> np.ndarray:
    """The colour in CIELAB, as this reader sees it."""
    given = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.asarray(READERS[reader]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.array(to_xyz) @ linear / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("palette", [COLOURS, ON_DARK, TASKS, TASKS_ON_DARK])
@pytest.mark.parametrize("reader", READERS)
def test_all_readers_tell_them_apart(palette, reader):
    points = [seen(colour, reader) for colour in palette]
    nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(points, 2))
    assert nearest > 12  # a difference of 2.3 can just be seen


def test_every_method_has_its_own_look_wherever_it_stands():
    assert set(ORDER) <= set(METHODS)
    found = looks(ORDER)
    assert found == looks(reversed(ORDER))
    assert len(set(found.values())) == len(ORDER)
    first = ORDER[: len(COLOURS)]
    assert all(found[name] == looks([name])[name] == Look(i) for i, name in enumerate(first))


def test_no_two_methods_share_a_colour_unless_there_are_too_many():
    for start in range(0, len(ORDER) - len(COLOURS), 3):
        some = [*ORDER[start : start + len(COLOURS) - 1], "my own"]
        assert len({look.colour for look in looks(some).values()}) == len(some)
        every = looks([*ORDER, "my own"], first=some)
        assert len({every[name].colour for name in some}) == len(some)


def test_custom_methods_move_no_known_ones_and_share_no_look():
    own = [f"mine {i}" for i in range(10)]
    found = looks([*own, "fedrep", "fedgradnorm"])
    assert found["fedrep"] == Look(0)
    assert found["fedgradnorm"] == Look(1)
    assert len(set(found.values())) == 12


def test_variants_share_the_colour_and_differ_in_stroke():
    labels = [f"fedgradnorm gamma={gamma}" for gamma in (0.5, 0.9, 1.5)]
    found = looks([*labels, "fedgradnorm (unfinished)", "GradNorm absolute"])
    assert {look.colour for look in found.values()} == {1}
    assert len({look.stroke for look in found.values()}) == 5
    many = looks([f"fedgradnorm gamma={gamma}" for gamma in range(20)])
    assert {look.colour for look in many.values()} == {1}
    assert {look.stroke for look in many.values()} == set(range(len(STROKES)))
