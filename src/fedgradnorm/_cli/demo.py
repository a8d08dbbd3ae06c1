"""``demo``: the point of the package in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.compare_commands import refuse_diverged, run_and_show
from fedgradnorm._cli.output import check_report, say
from fedgradnorm._cli.training_commands import Overrides

BEFORE = """\
Four clients share one network; each learns a different task from radio signals
(synthetic): modulation (6 classes), signal type (8), anomaly (2), and, by regression,
the SNR in dB. The SNR's squared error starts above 100, the other losses near 1 and 2."""


def demo(
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the runs go.")] = Path("runs"),
) -> None:
    """Train three methods on four radio-signal tasks and show what the weights are for.

    Takes about a minute on two cores and needs no download.
    `fedgradnorm configs demo` prints its config; to train one method on it, use
    `fedgradnorm run demo method=fedrep`.
    """
    import torch

    from fedgradnorm.experiments._config.config_file import load_config
    from fedgradnorm.experiments._execute import free_folder

    check_report()
    config = load_config("demo", overrides or ())
    say(BEFORE)
    torch.set_num_threads(1)  # small matrices lose much where a second core is not free
    refuse_diverged(run_and_show(config, None, None, 1, free_folder(out, "demo"), None))
