"""``demo``: the point of the package in one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.board import showing_runs
from fedgradnorm._cli.compare_commands import refuse_diverged
from fedgradnorm._cli.output import (
    check_report,
    data_bar,
    resumable,
    say,
    show_page,
    show_report,
)
from fedgradnorm._cli.training_commands import Overrides
from fedgradnorm._runs.layout import REPORT

METHODS = ("fedrep", "fedgradnorm", "fedgradnorm-direct")

QUICK = ("data.samples=12000", "lr=1e-3")
"""Changes to the config that take half the time and still learn every task."""

AGAIN = "fedgradnorm demo (from the start)"

BEFORE = """\
Four clients share one network; each learns a different task from radio signals
(synthetic): modulation (6 classes), signal type (8), anomaly (2), and, by regression,
the SNR in dB. The SNR's squared error starts above 100, the other losses near 1 and 2."""


def demo(
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the runs go.")] = Path("runs"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A fifth of the examples and a larger learning rate.")
    ] = False,
) -> None:
    """Train three methods on four radio-signal tasks and show what the weights are for.

    Takes about a minute on two cores, half of it with --quick, and needs no download.
    `fedgradnorm configs demo` prints its config; to train one method on it, use
    `fedgradnorm run demo method=fedrep`.
    """
    from fedgradnorm._report.page import write_page
    from fedgradnorm.experiments._compare import compare
    from fedgradnorm.experiments._config.config_file import load_config
    from fedgradnorm.experiments._execute import free_folder

    check_report()
    config = load_config("demo", [*(QUICK if quick else ()), *(overrides or ())])
    folder = free_folder(out, "demo")
    say(BEFORE)
    with _one_thread(), resumable(AGAIN), data_bar("signals") as bar, showing_runs() as watch:
        folders = compare(config, METHODS, folder=folder, watch=watch, data_progress=bar)
    page = write_page(folders, folder / REPORT)
    show_report(page.report)
    show_page(page, folder / REPORT)
    refuse_diverged(page.report.runs)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrices gain little from a second core, and lose much when it is not free."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
