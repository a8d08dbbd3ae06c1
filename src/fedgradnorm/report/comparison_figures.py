"""The figures of a comparison, each as PNG and PDF."""

from __future__ import annotations

from pathlib import Path

from fedgradnorm.report.arms import LOSS, SCORE
from fedgradnorm.report.comparison import Comparison
from fedgradnorm.report.figures_methods import methods_figure
from fedgradnorm.report.figures_paper import paper_figure
from fedgradnorm.report.figures_sweep import sweep_figure
from fedgradnorm.report.ranking import MANY, standouts

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
