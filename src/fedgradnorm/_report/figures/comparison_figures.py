"""The figures of a comparison, each as PNG and PDF."""

from __future__ import annotations

from pathlib import Path

from fedgradnorm._report.arms import LOSS, SCORE
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.figures.methods_glance import methods_figure
from fedgradnorm._report.figures.paper import paper_figure
from fedgradnorm._report.figures.sweep_points import sweep_figure
from fedgradnorm._report.ranking import MANY, standouts

ENDINGS = ("png", "pdf")


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Curves of losses and weights, many methods ranked, or what a sweep came to; the PNG files."""
    many = len(comparison.arms) > MANY
    coloured = standouts(comparison) if many else None
    made = []
    for ending in ENDINGS:
        if comparison.points:
            made.append(sweep_figure(comparison, folder / f"sweep-loss.{ending}", LOSS))
            made.append(sweep_figure(comparison, folder / f"sweep-held-out.{ending}", SCORE))
            continue
        path = folder / f"curves.{ending}"
        made.append(paper_figure(comparison.records, path, comparison.synthetic, coloured))
        if many:
            made.append(methods_figure(comparison, folder / f"methods.{ending}"))
    return [path for path in made if path.suffix == ".png"]
