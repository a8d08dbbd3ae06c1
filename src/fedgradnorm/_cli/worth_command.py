"""``worth``: does joining pay?"""

from __future__ import annotations

from typing import Annotated

import typer

from fedgradnorm._cli.compare_commands import Jobs, Out
from fedgradnorm._cli.output import data_bar, resumable, say
from fedgradnorm._cli.training_commands import (
    Allow,
    ConfigFile,
    Device,
    Overrides,
    changed,
)
from fedgradnorm._cli.watching import in_turn, watching
from fedgradnorm._runs.layout import BENEFIT, REPORT


def worth(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    by: Annotated[
        str, typer.Option("--by", help="Judge classes by accuracy (score), or by their loss.")
    ] = "score",
    seeds: Annotated[
        int, typer.Option("--seeds", "-s", help="How many, from the config's own on.")
    ] = 1,
    jobs: Jobs = 1,
    device: Device = None,
    out: Out = None,
    allow: Allow = None,
) -> None:
    """Does joining pay? Train together and alone, and say what each client gains.

    The config's method is trained, and each client alone with the same settings and the same
    stopping. Both are compared on every client's test rows. The runs lie in OUTPUT/NAME-worth;
    called again, finished ones are kept and stopped ones resumed. benefit.csv and a page are
    written beside them.

    Examples:

    - `fedgradnorm worth configs/school.toml data.validation_share=0.2 recording.keep=best`

    - `fedgradnorm worth configs/landmine.toml --by loss --seeds 3 --jobs 2`
    """
    from fedgradnorm._checks import one_of
    from fedgradnorm._report.grid import to_terminal
    from fedgradnorm._report.page.html_page import write_page
    from fedgradnorm._report.tables.benefit_grid import benefit_grid, write_benefit
    from fedgradnorm.experiments._config.config_file import load_config
    from fedgradnorm.experiments._worth_runs import worth as run_both
    from fedgradnorm.experiments._worth_runs import worth_folder

    one_of("--by", by, ("score", "loss"))
    wanted = load_config(config, changed(overrides, device), allow=allow or ())
    folder = worth_folder(wanted) if out is None else out
    with resumable("the same command"), data_bar("data") as bar, watching() as watch:
        found = run_both(
            wanted, seeds, folder=folder, by="loss" if by == "loss" else "score", jobs=jobs,
            display=in_turn(), watch=watch, data_progress=bar,
        )  # fmt: skip
    many = f"mean over {seeds} seeds" if seeds > 1 else f"seed {wanted.seed}"
    say(to_terminal(benefit_grid(found, f"{wanted.method} against alone, {many}")))
    say(found.sentence)
    write_benefit(found, folder / BENEFIT, wanted.method, seeds)
    write_page([folder], folder / REPORT)
    say(f"table: {folder / BENEFIT}")
    say(f"page:  {folder / REPORT}")
