"""``export``: one client of a run as a program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.output import say


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Whose network and head.")],
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to, such as model.pt2 or model.onnx.")
    ],
) -> None:
    """Write one client of a run as one program that takes raw inputs.

    It holds the scaling, the network, the client's statistics and its head. A .pt2 file needs
    PyTorch alone: `torch.export.load("model.pt2").module()(x)`. A .onnx file has input x and output
    y. It is read back and compared with the run before it is written.

    Examples:

    - `fedgradnorm export runs/radcom-fedgradnorm-seed0 modulation model.pt2`
    - `fedgradnorm export runs/radcom-fedgradnorm-seed0 modulation model.onnx`
    """
    from fedgradnorm._runs.loading import load

    say(f"program: {load(run).export(client, path)}")
