"""Learning rates that follow a schedule of torch.optim.lr_scheduler, round by round.

A rate depends on the number of the round alone, so there is nothing to save: a resumed run, a
client that was absent and a client on another machine all use the rate of the current round.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._checks import plain, shown
from fedgradnorm._errors import ConfigError, choose

ScheduleSpec = str | Mapping[str, Any] | Sequence[Any]
"""A class of torch.optim.lr_scheduler by name, a table of its options, or a list of these."""

UNKNOWN = 1000  # rounds of a run that has epochs instead, until its clients are known
_FOLLOWED = ("lr", "momentum", "betas")  # the options of an optimizer that a schedule may change
# The base class, one that follows a loss, and those made of functions or other schedulers:
_NOT_BY_ROUND = """LRScheduler ReduceLROnPlateau LambdaLR MultiplicativeLR SequentialLR
    ChainedScheduler"""
_CLASSES = {
    name.lower().removesuffix("lr"): getattr(lr_scheduler, name)
    for name in lr_scheduler.__all__
    if name not in _NOT_BY_ROUND.split() and not name.startswith("_")
} | {"cosine": lr_scheduler.CosineAnnealingLR}


def filled(spec: ScheduleSpec, rounds: int | None, lr: float) -> list[dict[str, Any]]:
    """The schedules as full tables, in the order in which they act.

    By default a schedule lasts as long as the run: ``T_max`` of a cosine, ``total_steps`` of one
    cycle (whose ``max_lr`` is the optimizer's rate) and ``total_iters`` of a polynomial.
    """
    rounds = UNKNOWN if rounds is None else rounds
    found = []
    for one in [spec] if isinstance(spec, str | Mapping) else spec:
        if not isinstance(one, str | Mapping):
            raise ConfigError(f"a schedule is a name or a table with a name, not {shown(one)}")
        table = {"name": one} if isinstance(one, str) else dict(one)
        given = str(table.pop("name", "")).lower().removesuffix("lr")
        name = choose(given, _CLASSES, "schedule")
        defaults: dict[str, Any] = {}
        if name in ("cosine", "cosineannealing"):
            defaults = {"T_max": rounds}
        elif name == "polynomial":
            defaults = {"total_iters": rounds}
        elif name == "onecycle" and "epochs" not in table:
            defaults = {"max_lr": lr, "total_steps": rounds}
        found.append({"name": name, **defaults, **table})
    return found


def check_schedule(name: str, value: object) -> Any:
    """A schedule as it was given; a ConfigError unless it can be one."""
    if value is None:
        return None
    if not isinstance(value, str | Mapping | list | tuple) or not value:
        raise ConfigError(
            f"{name} must be a name such as 'cosine', a table such as "
            f"{{'name': 'step', 'step_size': 100}}, or a list of these, not {shown(value)}"
        )
    return plain(name, value)


class Rates:
    """The options of an optimizer in each round: those of torch's schedulers, stepped per round."""

    def __init__(
        self, spec: ScheduleSpec, optimizer: Mapping[str, Any], rounds: int | None = None
    ) -> None:
        self._trial = optimizers.build([torch.zeros(1, requires_grad=True)], optimizer)
        self._schedulers = []
        (group,) = self._trial.param_groups
        momentum = "betas" in group or bool(group.get("momentum"))
        for options in filled(spec, rounds, optimizer["lr"]):
            name = options.pop("name")
            if "cycle_momentum" in inspect.signature(_CLASSES[name]).parameters:
                options = {"cycle_momentum": momentum, **options}
            try:
                if options.get("cycle_momentum") and not momentum:
                    raise ValueError("cycle_momentum needs an optimizer with a momentum")
                self._schedulers.append(_CLASSES[name](self._trial, **options))
            except Exception as error:  # torch checks some options, and stumbles over others
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ConfigError(
                    f"schedule {name!r}: {reason} (its options: {shown(options)})"
                ) from error
        self._found = [{key: group[key] for key in _FOLLOWED if key in group}]

    def at(self, round_number: int) -> dict[str, Any]:
        """The options of a round, the first being 0; past the end of a schedule, the last ones."""
        while len(self._found) <= round_number:
            self._trial.step()  # has no gradient; torch expects it before the scheduler's step
            try:
                for scheduler in self._schedulers:
                    scheduler.step()
            except ValueError:  # a cycle that is over
                break
            (group,) = self._trial.param_groups
            self._found.append({key: group[key] for key in _FOLLOWED if key in group})
        return self._found[min(round_number, len(self._found) - 1)]
