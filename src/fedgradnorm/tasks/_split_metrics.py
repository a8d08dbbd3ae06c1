"""The metrics of a split: on rows that have labels, at every position, in the targets' units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._measures import OURS, Metric
from fedgradnorm.tasks._missing import has_gaps, labelled, positions
from fedgradnorm.tasks._named_metrics import NamedMetric

if TYPE_CHECKING:
    from fedgradnorm._client import Scaler
    from fedgradnorm.tasks._task import Task


def measured(
    task: Task, output: Tensor, target: Tensor, scaling: Scaler | None
) -> dict[str, float]:
    """Every metric of a split's labelled rows; ``output`` is [rows, outputs, *shape].

    Our own metrics are of single positions. One of others gets the rows as they are, with NaN for
    what is missing. Where targets were standardised, all of them see the raw units.
    """
    if scaling is not None and task.has_real_targets:
        output, target = scaling.restore_targets(output), scaling.restore_targets(target)
    flat = output, target
    if task.shape:
        # Outputs and targets of the positions that have labels, a row for each.
        outputs = positions(output)
        targets = target.reshape(-1) if task.form.counted else positions(target)
        if has_gaps(targets):
            there = labelled(targets)
            outputs, targets = outputs[there], targets[there]
        flat = outputs, targets.long() if task.form.counted else targets
    values: dict[str, float] = {}
    for name, metric in task.metrics.items():
        try:
            value = metric(*flat) if is_ours(metric) else metric(output, target)
        except Exception as error:  # code of others may raise anything
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"metric {name!r} fails: {reason}; correct the metric") from error
        values[name] = one_number(name, value)
    return values


def is_ours(metric: Metric) -> bool:
    return metric in OURS or isinstance(metric, NamedMetric)


def check_metrics(metrics: Any) -> Mapping[str, Metric]:
    """The table of metrics; a ConfigError unless it holds functions by name."""
    found = {} if metrics is None else metrics
    if not isinstance(found, Mapping) or not all(map(callable, found.values())):
        raise ConfigError(
            "metrics must be a list of names, such as ['f1'], or functions by name, such as "
            "{'bias': lambda output, target: (output - target).mean()}, "
            f"not {metrics!r}; accuracy (of classes), mae and r2 (of numbers) are always there"
        )
    for name in found:
        if not isinstance(name, str) or not name.strip() or set(name) & set(',"\r\n'):
            raise ConfigError(
                "a metric's name must be a text without commas, quotes or line breaks, "
                f"not {name!r}"
            )
    return found


def one_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"metric {name!r} returns {shown_kind(value)}; it must return one number"
        ) from error


def shown_kind(value: Any) -> str:
    """What a value is, for a message: a tensor's shape, or the type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"shape {tuple(value.shape)}" if value.ndim else "a single number"
