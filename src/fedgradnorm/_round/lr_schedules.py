"""Learning rates that follow a schedule of torch.optim.lr_scheduler, round by round.

A round's rate depends on the number of the round alone, so there is nothing to save. A resumed run,
a client that was absent and a participant elsewhere all have the rate of the round that they are
in. Every engine has the same.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._checks import plain, shown
from fedgradnorm._errors import ConfigError, choose

log = logging.getLogger("fedgradnorm")

ScheduleSpec = str | Mapping[str, Any] | Sequence[Any]
"""A class of torch.optim.lr_scheduler by name, a table of its options, or a list of these."""

_NOT_BY_ROUND = ("LRScheduler", "ReduceLROnPlateau")
"""The base class, and one that follows a loss."""
UNKNOWN = 1000
"""Rounds of a run that has epochs instead, until its clients are known."""
_FOLLOWED = ("lr", "momentum", "betas")
"""What a schedule may move of an optimiser's options."""


def _by_name() -> dict[str, type[lr_scheduler.LRScheduler]]:
    """Schedulers whose options can be written down, by name in small letters, "LR" left out."""
    found = {}
    for name, kind in vars(lr_scheduler).items():
        if not (isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)):
            continue
        options = inspect.signature(kind).parameters
        if name not in _NOT_BY_ROUND and not {"lr_lambda", "schedulers"} & set(options):
            found[name.lower().removesuffix("lr")] = kind
    return {**found, "cosine": lr_scheduler.CosineAnnealingLR}


_CLASSES = _by_name()


def filled(spec: ScheduleSpec | None, rounds: int | None, lr: float) -> list[dict[str, Any]]:
    """The schedules as full tables, in the order in which they act.

    A length that is not given is that of the run: ``T_max`` of a cosine, ``total_steps`` of one
    cycle (whose ``max_lr`` is the optimiser's rate) and ``total_iters`` of a polynomial. A cycle
    moves the momentum only of an optimiser that has one.
    """
    found = []
    for one in [spec] if isinstance(spec, str | Mapping) else list(spec or ()):
        if not isinstance(one, str | Mapping):
            raise ConfigError(f"a schedule is a name or a table with a name, not {shown(one)}")
        table = {"name": one} if isinstance(one, str) else dict(one)
        given = str(table.pop("name", "")).lower().removesuffix("lr")
        name = choose(given, _CLASSES, "schedule")
        found.append({"name": name, **_lengths(name, table, rounds, lr), **table})
    return found


def _lengths(name: str, given: Mapping[str, Any], rounds: int | None, lr: float) -> dict[str, Any]:
    wanted: dict[str, dict[str, Any]] = {
        "cosine": {"T_max": rounds},
        "cosineannealing": {"T_max": rounds},
        "polynomial": {"total_iters": rounds},
        "onecycle": {} if "epochs" in given else {"max_lr": lr, "total_steps": rounds},
    }
    left = {key: value for key, value in wanted.get(name, {}).items() if key not in given}
    return {key: UNKNOWN if value is None else value for key, value in left.items()}


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
    """The options that an optimiser has in each round."""

    def __init__(
        self, spec: ScheduleSpec | None, optimizer: Mapping[str, Any], rounds: int | None = None
    ) -> None:
        tables = filled(spec, rounds, optimizer["lr"])
        parameter = torch.zeros(1, requires_grad=True)
        self._trial = optimizers.build([parameter], optimizer)
        self._base = self._now()
        self._schedulers = [self._made(table) for table in tables]
        self._found = [self._now()]

    def __bool__(self) -> bool:
        return bool(self._schedulers)

    def at(self, round_number: int) -> dict[str, Any]:
        """The options of a round, the first being 0; past the end of a schedule, the last ones."""
        while len(self._found) <= round_number:
            self._trial.step()  # of nothing: torch wants it before the schedule's
            try:
                for scheduler in self._schedulers:
                    scheduler.step()
            except ValueError:  # a cycle that is over
                return self._found[-1]
            self._found.append(self._now())
        return self._found[round_number]

    def follow(self, optimizer: torch.optim.Optimizer, round_number: int | None) -> None:
        """Give an optimiser the options of a round; None: those without any schedule."""
        if not self._schedulers:
            return
        values = self._base if round_number is None else self.at(round_number)
        for group in optimizer.param_groups:
            group.update(values)

    def _now(self) -> dict[str, Any]:
        (group,) = self._trial.param_groups
        return {key: group[key] for key in _FOLLOWED if key in group}

    def _has_momentum(self) -> bool:
        return "betas" in self._base or bool(self._base.get("momentum"))

    def _made(self, table: Mapping[str, Any]) -> lr_scheduler.LRScheduler:
        kind = _CLASSES[table["name"]]
        options = {key: value for key, value in table.items() if key != "name"}
        if "cycle_momentum" in inspect.signature(kind).parameters:
            options = {"cycle_momentum": self._has_momentum(), **options}
        try:
            if options.get("cycle_momentum") and not self._has_momentum():
                raise ValueError("cycle_momentum needs an optimizer with a momentum")
            return kind(self._trial, **options)
        except Exception as error:  # torch checks some options, and stumbles over others
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"schedule {table['name']!r}: {reason} (its options: {shown(options)})"
            ) from error
