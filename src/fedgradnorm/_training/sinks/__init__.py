"""Who else is told how a run goes: TensorBoard, MLflow or W&B, as ``[output] tracking`` asks.

A sink is a progress callback that is closed at the end, so ``fgn.train(..., progress=sink)`` works
as well. Each imports its package when the first round is over; nothing else here does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from fedgradnorm._errors import ConfigError, TrainingError
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import KEYS
from fedgradnorm._runs.many.spread import SHARES
from fedgradnorm._training.callbacks import Progress

Tracking = Literal["none", "tensorboard", "mlflow", "wandb"]
Show = bool | Callable[[Progress], None]

_BESIDE = {*KEYS, "active", "held"}


class Sink(Protocol):
    """A progress callback that has something to close; ``status`` is how the run ended."""

    def __call__(self, event: Progress) -> None:
        """Take the rows of a round."""

    def close(self, status: str) -> None:
        """Write the rest: the run is "finished", "stopped", "failed", or was never begun ("")."""


def open_sink(kind: Tracking, folder: str | Path, config: Mapping[str, Any]) -> Sink:
    """The sink of that name for the run in ``folder``; ``config`` is what it is labelled with."""
    if find_spec(kind) is None:
        extra = "wandb" if kind == "wandb" else "tracking"
        raise ConfigError(
            f"output.tracking = {kind!r} needs a package that is not here; "
            f"install it with: pip install fedgradnorm[{extra}]"
        )
    if kind == "tensorboard":
        from fedgradnorm._training.sinks.tensorboard_sink import TensorBoard

        return TensorBoard(Path(folder), config)
    if kind == "wandb":
        from fedgradnorm._training.sinks.wandb_sink import WandB

        return WandB(Path(folder), config)
    from fedgradnorm._training.sinks.mlflow_sink import MLflow

    return MLflow(Path(folder), config)


@contextmanager
def tracked(
    kind: Tracking, folder: Path, config: Mapping[str, Any], progress: Show
) -> Iterator[Show]:
    """What ``train`` takes as progress: the one given, and the sink beside it."""
    if kind == "none":
        yield progress
        return
    sink = open_sink(kind, folder, config)
    status = ""
    with ExitStack() as stack:
        show = _shown(stack, progress)

        def tell(event: Progress) -> None:
            sink(event)
            if show is not None:
                show(event)

        try:
            yield tell
            status = "finished"
        except KeyboardInterrupt:
            status = "stopped"
            raise
        except TrainingError:
            status = "failed"
            raise
        finally:
            sink.close(status)


def _shown(stack: ExitStack, progress: Show) -> Callable[[Progress], None] | None:
    if progress is True:
        from fedgradnorm._training.display import live_display

        return stack.enter_context(live_display())
    return progress or None


def scalars(row: Row) -> Iterator[tuple[str, float]]:
    """A row as named numbers: ``train/loss/CLIENT``, or of quantiles ``train/loss/TASK/p90``."""
    if "quantity" in row:
        start = f"{row['split']}/{row['quantity']}/{row['task']}"
        yield from ((f"{start}/{column}", float(row[column])) for column in SHARES)
        return
    for column, value in row.items():
        if column not in _BESIDE and value is not None:
            yield f"{row['split']}/{column}/{row['client']}", float(value)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A config as texts by dotted key."""
    found: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
