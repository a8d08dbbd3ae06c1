"""Which colour and stroke a method has, in every figure and on the page.

A method's place in :data:`ORDER` decides. Where that colour is taken by another method, it gets one
that is free: methods share a colour only where there are more of them than colours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Okabe and Ito's colours and a brown, which colour-blind readers can tell apart too, and the same
# hues for dark paper. The tests measure both for readers with each kind of colour blindness.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333", "#661100",
)  # fmt: skip
ON_DARK = (
    "#3D9AD9", "#F0762B", "#12B886", "#E08BBD", "#F0C84A", "#A3DCFF", "#E8EAED", "#A0522D",
)  # fmt: skip
TASKS = ("#332288", "#CC6677", "#999933", "#88CCEE", "#882255", "#44AA99", "#AA4499", "#117733")
"""Tasks, where they share a panel: Paul Tol's muted colours, so that none looks like a method."""

TASKS_ON_DARK = (
    "#8A7BE8", "#E88594", "#C2C24D", "#A8E0FA", "#C2457F", "#5CCFBF", "#C873C8", "#2FA052",
)  # fmt: skip

STROKES: tuple[tuple[int, ...], ...] = (
    (), (9, 4), (11, 3, 3, 3), (5, 3), (16, 4), (11, 3, 3, 3, 3, 3),
)  # fmt: skip
"""Dash and gap lengths in pixels: further methods of a colour, and variants of a method."""

ORDER = (
    "fedrep", "fedgradnorm", "fedgradnorm-direct", "fedgradnorm-static", "inverse-first-loss",
    "local", "central", "fedper", "geometric-mean", "rlw", "dwa", "uw", "imtl-l", "famo", "q-ffl",
    "afl", "upgrad", "dualproj", "mgda", "fsmgda", "fedmgda", "fedcmoo", "pcgrad", "gradvac",
    "cagrad", "nash-mtl", "imtl-g", "aligned-mtl", "fairgrad", "krum", "config", "graddrop",
    "trimmed-mean", "fedrep-classic", "fedprox", "fedavg", "fedbabu", "ditto", "static",
    "fedgradnorm-steady", "fedgradnorm-paper",
)  # fmt: skip
"""The places of methods in published figures: to move one is to repaint it everywhere. Any other
method goes where the letters of its name send it."""

_FROM_PYTHON = {
    "Equal": "fedrep",
    "GradNorm absolute": "fedgradnorm",
    "GradNorm direct": "fedgradnorm-direct",
}


@dataclass(frozen=True)
class Look:
    """Numbers of a colour and of a stroke."""

    colour: int
    stroke: int = 0

    @property
    def name(self) -> str:
        """The colour's name in matplotlib, whose style says which it is on this paper."""
        return f"C{self.colour}"


def looks(labels: Iterable[str], first: Sequence[str] = ()) -> dict[str, Look]:
    """A look for each label: a method's name, perhaps followed by the settings of a variant of it.

    The labels in ``first`` choose first. Variants of a method share its colour and differ in
    stroke.
    """
    wanted = list(dict.fromkeys(labels))
    found: dict[str, Look] = {}
    colours: dict[str, int] = {}

    def rank(label: str) -> tuple[bool, bool, int, int]:
        method = method_of(label)
        known = method in ORDER
        place = ORDER.index(method) if known else wanted.index(label)
        return label not in first, not known, place, wanted.index(label)

    for label in sorted(wanted, key=rank):
        method = method_of(label)
        # A custom method gets a place from the letters of its name.
        place = ORDER.index(method) if method in ORDER else int.from_bytes(
            hashlib.blake2b(method.encode(), digest_size=4).digest(), "big")  # fmt: skip
        colour, stroke = place % len(COLOURS), place // len(COLOURS) % len(STROKES)
        free = [c % len(COLOURS) for c in range(colour, colour + len(COLOURS))]
        free = [c for c in free if c not in colours.values()]
        if method not in colours:
            stroke = 0 if free else stroke
            colours[method] = colour if not free or colour in free else free[0]
        colour = colours[method]
        tries = [Look(colour, (stroke + more) % len(STROKES)) for more in range(len(STROKES))]
        found[label] = next((look for look in tries if look not in found.values()), tries[0])
    return {label: found[label] for label in wanted}


def method_of(label: str) -> str:
    """The method that a label begins with; the label itself where none is known.

    >>> method_of("fedgradnorm-direct gamma=0.5"), method_of("Equal"), method_of("my own")
    ('fedgradnorm-direct', 'fedrep', 'my own')
    """
    names = {**{name: name for name in ORDER}, **_FROM_PYTHON}
    fitting = [name for name in names if label == name or label.startswith(f"{name} ")]
    return names[max(fitting, key=len)] if fitting else label
