"""TensorBoard, as ``[output] tracking`` asks; its event files are in the run folder.

Other trackers are a callback of a few lines: a function that gets the rows of each round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fedgradnorm._errors import ConfigError
from fedgradnorm._round.reports import KEYS
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.layout import EVENTS
from fedgradnorm._runs.spread import SHARES
from fedgradnorm._training.callbacks import Progress

Tracking = Literal["none", "tensorboard"]
Take = Callable[[Progress], None]
Show = bool | Take


@contextmanager
def open_sink(kind: Tracking, folder: str | Path, config: Mapping[str, Any]) -> Iterator[Take]:
    """The tracker of that name for the run in ``folder``, as a function for ``callbacks``.

    Use it in a ``with`` block around the training. Every number of the history becomes a scalar;
    ``config`` is stored with the run, and whether it finished, was stopped or failed. A resumed run
    continues in another file. A tracker "none" does nothing.
    """
    if kind == "none":
        yield lambda _: None
        return
    if find_spec(kind) is None:
        raise ConfigError(
            f"output.tracking = {kind!r} needs a package that is not here; "
            "install it with: pip install fedgradnorm[tracking]"
        )
    writer: Any = None

    def take(event: Progress) -> None:
        nonlocal writer
        if writer is None:
            from torch.utils.tensorboard import SummaryWriter

            first = min((row["round"] for row in event.rows), default=event.round)
            # Steps that an interrupted run wrote after its last checkpoint are written again.
            writer = SummaryWriter(str(Path(folder) / EVENTS), purge_step=first)
            lines = ["| key | value |", "| --- | --- |"]
            lines += [f"| {key} | {value} |" for key, value in flat(config).items()]
            writer.add_text("config", "\n".join(lines), first)
        for row in (*event.rows, *event.spread):
            for name, value in scalars(row):
                writer.add_scalar(name, value, row["round"])

    status = "failed"
    try:
        yield take
        status = "finished"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    finally:
        if writer is not None:
            writer.add_text("status", status)
            writer.close()


def scalars(row: Row) -> Iterator[tuple[str, float]]:
    """A row as named numbers: ``train/loss/CLIENT``, or of quantiles ``train/loss/TASK/p90``."""
    if "quantity" in row:
        start = f"{row['split']}/{row['quantity']}/{row['task']}"
        yield from ((f"{start}/{column}", float(row[column])) for column in SHARES)
        return
    for column, value in row.items():
        if column not in (*KEYS, "active", "weight_frozen") and value is not None:
            yield f"{row['split']}/{column}/{row['client']}", float(value)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": str(value)}
    return found
