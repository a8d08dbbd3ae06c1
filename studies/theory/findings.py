"""What a study of a claim returns: a verdict with its numbers, and curves to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Verdict = Literal["holds", "holds with a floor", "does not hold"]
Style = Literal["line", "dashed", "points"]


@dataclass(frozen=True)
class Claim:
    """One claim, whether it stands, and the numbers that say so."""

    key: str
    statement: str
    verdict: Verdict
    measured: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """One line or set of points of a panel."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style = "line"


@dataclass(frozen=True)
class Panel:
    """One picture; y is always logarithmic, x where ``log_x`` is set."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False


@dataclass(frozen=True)
class Finding:
    """What one study found."""

    claims: Sequence[Claim]
    panels: Sequence[Panel] = ()


def holds(good: bool) -> Verdict:
    """The verdict on a claim that is either so or not."""
    return "holds" if good else "does not hold"


def rounds_curve(label: str, errors: Tensor, style: Style = "line", points: int = 300) -> Curve:
    """Errors over rounds, thinned to what a picture can show; zeros left out."""
    every = max(1, len(errors) // points)
    pairs = [(k, v) for k, v in enumerate(errors.tolist()) if k % every == 0 and v > 0]
    return Curve(label, [k for k, _ in pairs], [v for _, v in pairs], style)
