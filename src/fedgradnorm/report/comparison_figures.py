"""The figures of a comparison, each as PNG and PDF."""

from __future__ import annotations

from pathlib import Path

from fedgradnorm.report.arms import LOSS, SCORE
from fedgradnorm.report.comparison import Comparison
from fedgradnorm.report.figures_paper import paper_figure
from fedgradnorm.report.figures_sweep import sweep_figure

ENDINGS = ("png", "pdf")


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Curves of losses and weights, or what a sweep came to; the PNG files' paths."""
    made = []
    for ending in ENDINGS:
        if comparison.points:
            made.append(sweep_figure(comparison, folder / f"sweep-loss.{ending}", LOSS))
            made.append(sweep_figure(comparison, folder / f"sweep-held-out.{ending}", SCORE))
        else:
            path = folder / f"curves.{ending}"
            made.append(paper_figure(comparison.records, path, comparison.synthetic))
    return [path for path in made if path.suffix == ".png"]
