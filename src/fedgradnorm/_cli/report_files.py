"""What ``report`` does when its file is a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedgradnorm._cli.output import say


def is_page(path: Path) -> bool:
    """Whether a file's ending asks for the page rather than a figure."""
    return path.suffix.lower() in (".html", ".htm")


def show_page(places: Sequence[Path], path: Path) -> None:
    """Write the page; say in the terminal what its table and its notes say."""
    from fedgradnorm._report.page.html_page import write_page
    from fedgradnorm._report.tables.summaries import results_table

    page = write_page(places, path)
    if page.rows:
        seeds = max(row.seeds for row in page.rows)
        note = f"mean over {seeds} seeds ± 95% interval" if seeds > 1 else ""
        say(results_table(page.rows, note))
    for line in page.notes:
        say(line)
    say(f"page: {path}")
