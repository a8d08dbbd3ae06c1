"""Which colour and stroke a method has: in every figure, on the page, whoever else is there.

A method's place in :data:`ORDER` decides, so that neither hiding others nor adding some moves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Okabe and Ito's colours, told apart by colour-blind readers too; beside them the same hues for
# dark paper. The tests measure both as readers with each kind of colour blindness see them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
ON_DARK = ("#3D9AD9", "#F0762B", "#12B886", "#E08BBD", "#F0C84A", "#A3DCFF", "#E8EAED")
TASKS = ("#332288", "#CC6677", "#999933", "#88CCEE", "#882255", "#44AA99", "#AA4499", "#117733")
"""Tasks, where they share a panel: Paul Tol's muted colours, so that none looks like a method."""

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
    def hex(self) -> str:
        """The colour on white paper."""
        return COLOURS[self.colour]


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look for each label, a method's name and perhaps the settings of a variant of it.

    Known methods keep theirs. Their variants share the colour and differ in stroke. A name of
    somebody's own goes where its letters send it, or to the next look that is free.
    """
    wanted = list(dict.fromkeys(labels))
    known = [label for label in wanted if method_of(label) in ORDER]
    found: dict[str, Look] = {}
    for label in sorted(known, key=lambda label: label not in ORDER):  # stable: plain names first
        place = ORDER.index(method_of(label))
        colour, stroke = place % len(COLOURS), place // len(COLOURS)
        tries = [Look(colour, (stroke + more) % len(STROKES)) for more in range(len(STROKES))]
        found[label] = _free(tries, found)
    for label in wanted:
        if label not in found:
            first = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=4).digest(), "big")
            places = range(first, first + len(COLOURS))
            tries = [Look(p % len(COLOURS), s) for s in range(len(STROKES)) for p in places]
            found[label] = _free(tries, found)
    return {label: found[label] for label in wanted}


def method_of(label: str) -> str:
    """The method that a label begins with; the label itself where none is known.

    >>> method_of("fedgradnorm-direct gamma=0.5"), method_of("Equal"), method_of("my own")
    ('fedgradnorm-direct', 'fedrep', 'my own')
    """
    names = {**{name: name for name in ORDER}, **_FROM_PYTHON}
    fitting = [name for name in names if label == name or label.startswith(f"{name} ")]
    return names[max(fitting, key=len)] if fitting else label


def _free(tries: Sequence[Look], found: dict[str, Look]) -> Look:
    taken = set(found.values())
    return next((look for look in tries if look not in taken), tries[0])


def stylesheet() -> str:
    """The colours as CSS: ``--c0`` and so on by scheme, and a class for each."""
    light, dark = (
        " ".join(f"--c{number}: {colour};" for number, colour in enumerate(colours))
        for colours in (COLOURS, ON_DARK)
    )
    classes = " ".join(f".m{n} {{ --c: var(--c{n}) }}" for n in range(len(COLOURS)))
    at_night = (
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not(.printing) {{ {dark} }} }}"
    )
    return f":root {{ {light} }}\n{at_night}\n{classes}\n"


def key(look: Look) -> str:
    """A short piece of the method's line, as SVG."""
    dashes = ",".join(map(str, STROKES[look.stroke]))
    pattern = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<svg class="key m{look.colour}" width="22" height="4" aria-hidden="true">'
        f'<line x1="0" x2="22" y1="2" y2="2"{pattern}/></svg>'
    )
