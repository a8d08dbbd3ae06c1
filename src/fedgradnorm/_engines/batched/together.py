"""The heads of many clients, stepped and differentiated together on one network's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from fedgradnorm._engines.batched.head_group import Chosen, HeadGroup
from fedgradnorm._engines.batched.plan import Part, Plan
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm._round.client_round import LocalSettings
from fedgradnorm.models._input_rows import Inputs


class JointRows(Protocol):
    """Rows of many clients as one, and their targets."""

    @property
    def inputs(self) -> Inputs:
        """The rows, client after client."""

    @property
    def begin(self) -> Mapping[str, int]:
        """Where each client's rows begin."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many there are of each client."""

    def targets(self, group: HeadGroup, rows: Tensor, chosen: Chosen) -> Tensor:
        """The targets of some rows: as many of each member of the group that is chosen."""


class HeadSteps(Protocol):
    """Steps of all heads that have a gradient."""

    def clear(self) -> None:
        """Forget the heads' gradients."""

    def step(self) -> None:
        """Every head that has a gradient takes a step."""


class Together:
    """What is done to the heads of a round's clients, whoever keeps them and their rows."""

    how: LocalSettings
    streams: Streams
    data: JointRows
    optimizers: HeadSteps

    def head_phase(self, features: Callable[[int], Tensor], rows: Tensor, plan: Plan) -> None:
        """``head_steps`` updates of all heads on frozen features."""
        self.optimizers.clear()
        for step in range(self.how.head_steps):
            z = features(step)
            for part in self.streams.side_by_side(plan.parts):
                targets = self.targets(part, rows[step, part.rows], part.chosen)
                gradients = part.group.head_gradients(z[part.rows], targets, part.chosen)
                part.group.place_gradients(gradients, part.members)
            self.optimizers.step()

    def targets(self, part: Part, rows: Tensor, chosen: Chosen = None) -> Tensor:
        """The targets of some rows of the joint inputs: those of the members ``chosen`` in turn."""
        return self.data.targets(part.group, rows, chosen)

    def signal(self, z: Tensor, rows: Tensor, plan: Plan) -> tuple[list[Tensor], Tensor]:
        """Each part's losses, and d loss / d output; heads step along where all go together."""
        together = self.how.together
        if together:
            self.optimizers.clear()
        losses, signals = [], []
        for part in self.streams.side_by_side(plan.parts):
            targets = self.targets(part, rows[part.rows], part.chosen)
            values, signal, gradients = part.group.signal(
                z[part.rows], targets, part.chosen, together
            )
            losses.append(values)
            signals.append(signal)
            if together:
                part.group.place_gradients(gradients, part.members)
        if together:
            self.optimizers.step()
        return losses, torch.cat(signals)
