"""``benefit``: what each client gains over training alone."""

from __future__ import annotations

from typing import Annotated

import typer

from fedgradnorm._cli.compare_commands import Jobs, Out
from fedgradnorm._cli.output import check_report, data_bar, resumable, say
from fedgradnorm._cli.training_commands import (
    Allow,
    ConfigFile,
    Device,
    Overrides,
    changed,
)
from fedgradnorm._cli.watching import watching
from fedgradnorm._runs.layout import BENEFIT, REPORT


def benefit(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    by: Annotated[
        str, typer.Option("--by", help="Judge classes by accuracy (score), or by their loss.")
    ] = "score",
    seeds: Annotated[
        int,
        typer.Option("--seeds", "-s", help="Number of seeds, starting with the config's `seed`."),
    ] = 1,
    jobs: Jobs = 1,
    device: Device = None,
    out: Out = None,
    allow: Allow = None,
) -> None:
    """Train together and alone, and show what each client gains.

    The config's method is trained, and each client alone with the same settings and the same
    stopping. Both are compared on every client's test rows. The runs lie in OUTPUT/NAME-benefit;
    called again, finished ones are kept and stopped ones resumed. benefit.csv and a page are
    written beside them.

    Examples:

    - `fedgradnorm benefit school data.validation_share=0.2 keep_best=true`

    - `fedgradnorm benefit landmine --by loss --seeds 3 --jobs 2`
    """
    from fedgradnorm._checks import one_of
    from fedgradnorm._report.benefit import client_grid, write_benefit
    from fedgradnorm._report.grid import to_terminal
    from fedgradnorm._report.page import write_page
    from fedgradnorm.experiments._benefit_runs import benefit as run_both
    from fedgradnorm.experiments._benefit_runs import benefit_folder
    from fedgradnorm.experiments._config.config_file import load_config

    one_of("--by", by, ("score", "loss"))
    check_report()
    wanted = load_config(config, changed(overrides, device), allow=allow or ())
    folder = benefit_folder(wanted) if out is None else out
    with resumable("the same command"), data_bar("data") as bar, watching() as watch:
        found = run_both(
            wanted, seeds, folder=folder, by="loss" if by == "loss" else "score", jobs=jobs,
            watch=watch, data_progress=bar,
        )  # fmt: skip
    many = f"mean over {seeds} seeds" if seeds > 1 else f"seed {wanted.seed}"
    say(to_terminal(client_grid(found, f"{wanted.method} against alone, {many}")))
    say(found.sentence)
    write_benefit(found, folder / BENEFIT, wanted.method, seeds)
    write_page([folder], folder / REPORT)
    say(f"table: {folder / BENEFIT}")
    say(f"page:  {folder / REPORT}")
