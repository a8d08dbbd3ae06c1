"""When checkpoints are written: as often as asked for, or as often as costs little."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedgradnorm._engines.ranks import World
from fedgradnorm._training.ranked import Keeper
from fedgradnorm._training.trainer import Trainer

SHARE = 0.05
"""The part of the time since the last checkpoint that the next one may take to be due."""
LONGEST = 5.0
"""Seconds after which a checkpoint is due at the next epoch's end, whatever it takes."""


class Checkpoints:
    """Writes a run's checkpoints, if it is kept at all.

    ``checkpoint_every`` is obeyed to the round. Without it a checkpoint is due at an epoch's end,
    unless the last one took more than ``SHARE`` of the time since: an epoch of a few rows is over
    in less time than a disk needs. What a checkpoint holds does not depend on when it is written.
    """

    def __init__(
        self,
        keeper: Keeper | None,
        trainer: Trainer,
        world: World,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.keeper, self.trainer, self.world, self.clock = keeper, trainer, world, clock
        # 0: never, so rounds that an engine can run at once are not cut where one would be due.
        self.every = 0 if keeper is None else trainer.every(trainer.settings.checkpoint_every)
        self._cost, self._last = 0.0, clock()

    def after_round(self) -> None:
        """Write one if it is due."""
        if self.keeper is None:
            return
        if self.trainer.done or (self.trainer.round % self.every == 0 and self._due()):
            self.write()

    def write(self) -> None:
        """Write one now."""
        if self.keeper is None:
            return
        began = self.clock()
        self.keeper.save_checkpoint()
        self._last = self.clock()
        self._cost = self._last - began

    def _due(self) -> bool:
        if self.trainer.settings.checkpoint_every is not None:
            return True
        passed = self.clock() - self._last
        due = self._cost <= SHARE * passed or passed > LONGEST
        return bool(self.world.leaders(due))  # all ranks take part in writing, or none
