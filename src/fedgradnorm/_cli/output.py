"""What the commands share: their output, their errors, and a progress bar for data."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import Progress
from rich.text import Text
from typer.core import TyperGroup

from fedgradnorm._checks import shortened
from fedgradnorm._errors import FedGradNormError, RankLost, TrainingError
from fedgradnorm._extras import needed
from fedgradnorm._launched import is_leader
from fedgradnorm._report.grid import Grid, to_terminal
from fedgradnorm._training.interrupt import one_press

if TYPE_CHECKING:
    from pathlib import Path

    from fedgradnorm._report.frame import Report
    from fedgradnorm._report.page import Page
    from fedgradnorm.data._sources import DataProgress

FILE_WIDTH = 120
BAD_INPUT, FAILED, DIVERGED, STOPPED = 2, 1, 3, 130

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class Commands(TyperGroup):
    """The group of all commands: every error that is ours becomes one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        if not is_leader():  # one of torchrun's other processes: rank 0 prints for all
            out.quiet = err.quiet = True
        with one_press(), _warnings_shown():
            try:
                return super().invoke(ctx)
            except RankLost as error:
                err.quiet = False  # rank 0 may be the one that died
                raise fail(str(error), FAILED) from None
            except TrainingError as error:
                raise fail(str(error), FAILED) from None
            except FedGradNormError as error:
                raise fail(str(error), BAD_INPUT) from None
            except (OSError, ValueError) as error:
                raise _unusable_path(error) from error
            except KeyboardInterrupt as stop:
                raise fail(str(stop) or "stopped; nothing new was kept", STOPPED) from None


def _unusable_path(error: OSError | ValueError) -> Exception:
    """The exit for a path that the system refuses, whatever command met it; else the error."""
    if isinstance(error, OSError) and error.filename is not None:
        name, reason = shortened(str(error.filename), 200), error.strerror
        return fail(f"{name}: cannot be used ({reason}); name another path", BAD_INPUT)
    if "null byte" in str(error) or "null character" in str(error):
        return fail("a path has a null byte in it; name another path", BAD_INPUT)
    return error


def fail(message: str, code: int) -> typer.Exit:
    """Say on one line of stderr what is wrong; the exit to raise."""
    word = "stopped" if code == STOPPED else "error"
    line = " ".join(message.split())
    line = line if line.startswith(word) else f"{word}: {line}"
    err.print(line, markup=False, soft_wrap=True, style="yellow" if code == STOPPED else "red")
    return typer.Exit(code)


def say(text: Any = "") -> None:
    """Print to stdout: text as it is, and a table as wide as the terminal, or as a file.

    ``COLUMNS`` in the environment counts as a terminal's width.
    """
    columns = os.environ.get("COLUMNS", "")
    if not out.is_terminal:
        out.width = int(columns) if columns.isdecimal() else FILE_WIDTH
    for part in to_terminal(text, out.width) if isinstance(text, Grid) else [text]:
        out.print(part, markup=False, soft_wrap=isinstance(part, str), crop=False)


def tell(notes: Iterable[str]) -> None:
    """Print what should be known along with a result, to stderr."""
    for note in notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)


def show_report(report: Report) -> None:
    """The first table of a report, and notes about it."""
    from fedgradnorm._report.tables import shown_grids

    if len(report.frame):
        say(shown_grids(report)[0])
    tell(report.notes)


def show_page(page: Page, path: Path) -> None:
    from fedgradnorm._report.headline import headline

    say(f"page:    {path} (opens in any browser, works offline)")
    say(Text(headline(page.report.frame)))


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Ctrl-C inside shows how to continue."""
    try:
        yield
    except KeyboardInterrupt as stop:
        reached = str(stop).partition(";")[0]
        if not reached:  # before anything was kept
            raise
        raise KeyboardInterrupt(f"{reached}; continue with: {command}") from None


@contextmanager
def data_bar(title: str) -> Iterator[DataProgress | None]:
    """A bar that appears once data takes time to read or make; None where nobody watches."""
    if not err.is_terminal:
        yield None
        return
    progress = Progress(console=err, transient=True)
    task = progress.add_task(title)

    def show(done: int, total: int) -> None:
        if done < total:
            progress.start()
        progress.update(task, completed=done, total=total)
        if done >= total:
            progress.stop()

    try:
        yield show
    finally:
        progress.stop()


class _Once(logging.Filter):
    """Lets each message through once: all runs of a command may have the same to say."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        new = record.getMessage() not in self.said
        self.said.add(record.getMessage())
        return new


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """The library's warnings on stderr, above a live display rather than through it."""
    handler = RichHandler(logging.WARNING, err, show_time=False, show_path=False)
    handler.addFilter(_Once())
    logger = logging.getLogger("fedgradnorm")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def check_report() -> None:
    """Refuse before any training where the packages that show its result are missing."""
    with needed("report", "comparing runs"):
        for package in ("scipy", "jinja2", "matplotlib", "plotly"):
            if find_spec(package) is None:
                raise ImportError(name=package)
