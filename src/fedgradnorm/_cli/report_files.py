"""What ``report`` does when its file is a page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from fedgradnorm._cli.output import say
from fedgradnorm._runs.layout import MANIFEST, METRICS, SPREAD

EVERY = 5
"""Seconds between two looks at the runs, and between two loads of a page that is open."""


def is_page(path: Path) -> bool:
    """Whether a file's ending asks for the page rather than a figure."""
    return path.suffix.lower() in (".html", ".htm")


def show_page(places: Sequence[Path], path: Path, refresh: int = 0) -> None:
    """Write the page; print its table, its notes and its headline."""
    from fedgradnorm._report.grid import to_terminal
    from fedgradnorm._report.headline import headline
    from fedgradnorm._report.page import write_page
    from fedgradnorm._report.tables import tasks_grid

    page = write_page(places, path, refresh)
    if page.crowd is not None:
        say(to_terminal(page.crowd))
    elif len(page.report.frame):
        say(to_terminal(tasks_grid(page.report)))
    for line in page.report.notes:
        say(line)
    say(Text(headline(page.report.frame)))
    say(f"page: {path}")


def keep_fresh(places: Sequence[Path], path: Path, every: float = EVERY) -> None:
    """Write the page again whenever a run has something new, until all of them are finished.

    The page loads itself again while this goes on, and no longer once it is over.
    """
    from fedgradnorm._report.page import write_page
    from fedgradnorm._runs.reader import collect

    seen = _state(places)
    try:
        while not all(run.finished for run in collect(places)[0]):
            time.sleep(every)
            now = _state(places)
            if now != seen:
                write_page(places, path, EVERY)
                seen = now
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{path} is as fresh as the last look") from None
    finally:
        write_page(places, path)
    say(f"all runs are finished; page: {path}")


def _state(places: Sequence[Path]) -> set[tuple[Path, int]]:
    """When the files that a page is made from were changed."""
    names = (METRICS, SPREAD, MANIFEST)
    found = (file for place in places for name in names for file in place.rglob(name))
    return {(file, file.stat().st_mtime_ns) for file in found if file.exists()}
