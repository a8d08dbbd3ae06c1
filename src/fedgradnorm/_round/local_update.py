"""A client's part of a round, as a pure function of the shared network, its row and its batches.

FedRep, FedPer, FedAvg, FedProx, FedBABU, Ditto and training alone are values of :class:`LocalSpec`.
The function is written for a block of rows, one per client, and every executor calls it: ``loop``
with one row at a time, ``vmap`` with all rows of a part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.lr_schedules import Rates, ScheduleSpec
from fedgradnorm._state.table import OPTIMIZER, OWN, Row
from fedgradnorm.tasks._task import Task

FirstLoss = Literal["dataset", "first_round", "log_classes"]
Sends = Literal["gradient", "delta", "model"]
ReportLoss = Literal["before", "after"]
Phases = Literal["alternating", "joint"]
LOCAL = "local."  # moments of the local optimizer that are kept across rounds


@dataclass(frozen=True)
class LocalSpec:
    """The settings of a client's round, by their names and with their optimizers resolved."""

    head_steps: int
    shared_steps: int
    first_loss: FirstLoss
    sends: Sends
    report_loss: ReportLoss
    phases: Phases
    head_optimizer: Mapping[str, Any]
    local_optimizer: Mapping[str, Any]
    proximal: float
    head_schedule: ScheduleSpec | None
    clip: float | None
    head_clip: float | None
    rounds: int | None

    @cached_property
    def head_rates(self) -> Rates | None:
        """The learning rate of the heads' optimizers in each round, where a schedule moves it."""
        if self.head_schedule is None:
            return None
        return Rates(self.head_schedule, self.head_optimizer, self.rounds)

    @cached_property
    def steps(self) -> int:
        """Batches a client reads in a round: step s of either phase takes batch s."""
        return self.shared_steps if self.joint_phases else max(self.head_steps, self.shared_steps)

    @cached_property
    def joint_phases(self) -> bool:
        """Whether head and shared network step together, on one backward pass."""
        return self.phases == "joint"

    @cached_property
    def steps_locally(self) -> bool:
        """Whether the local copy of the shared network moves at all."""
        return self.shared_steps > 1 or self.sends != "gradient" or self.report_loss == "after"

    @cached_property
    def keeps_moments(self) -> bool:
        """Whether a client's local optimizer continues where its last round ended."""
        return bool(self.local_optimizer.get("keep"))


class Gradients(Protocol):
    """How a block's losses are differentiated: plainly, or clipped and with noise for privacy."""

    def of(
        self, networks: Tensor, row: Row, step: int, *, shared: bool, own: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Losses ``[rows]`` at batch ``step``, and their gradients ``[rows, numbers]``.

        ``networks`` ``[rows, P]`` are the clients' copies of the shared network. The gradients are
        with respect to them (``shared``) and to the clients' ``own`` parameters, where asked for.
        """

    def losses(self, networks: Tensor, row: Row, step: int) -> Tensor:
        """The losses alone, after a step on this batch."""


@dataclass(frozen=True)
class Work:
    """What a block of clients works with: its gradients and its optimizers."""

    gradients: Gradients
    head: optimizers.Optimizer
    local: optimizers.Optimizer
    norm_layer: Tensor | slice  # where the measured layer is in the shared vector


@dataclass(frozen=True)
class Report:
    """What the clients of a block send, one row each: update, loss and gradient norm."""

    update: Tensor
    loss: Tensor
    grad_norm: Tensor


def local_update(
    work: Work, spec: LocalSpec, shared: Tensor, row: Row, options: Mapping[str, Any] | None = None
) -> Report:
    """One round of a block of clients (Algorithm 2, client part); ``row`` is moved in place.

    First ``head_steps`` updates of the head on the frozen ``shared`` network [rows, P]; then
    ``shared_steps`` gradients on it with the head frozen, stepping a local copy between them.
    """
    head_phase(work, spec, shared, row, options)
    return shared_phase(work, spec, shared, row, options)


def head_phase(
    work: Work, spec: LocalSpec, shared: Tensor, row: Row, options: Mapping[str, Any] | None = None
) -> None:
    """``head_steps`` updates of what is the client's own, with the shared network frozen.

    ``options`` are those of the heads' optimizer in this round, where a schedule moves them.
    """
    for step in range(0 if spec.joint_phases else spec.head_steps):
        gradient = work.gradients.of(shared, row, step, shared=False, own=True)[2]
        step_own(work.head, spec, row, gradient, options)


def shared_phase(
    work: Work, spec: LocalSpec, shared: Tensor, row: Row, options: Mapping[str, Any] | None = None
) -> Report:
    """``shared_steps`` gradients on the shared network, and what is sent of them:

        update = mean_s grad F(w_s),   grad_norm = |update on the measured layer|,
        loss = mean_s F(w_s)

    With ``proximal`` = mu > 0 (FedProx) the local steps, and so the update, follow the gradient of
    F + mu/2 |w_s - shared|^2; the gradient norm and the loss stay those of F. With ``clip`` = c
    each of these gradients g is first scaled by min(1, c / |g|). ``head_clip`` does the same to
    each gradient of what is the client's own.
    """
    networks = shared.clone(memory_format=torch.contiguous_format) if spec.steps_locally else shared
    moments: optimizers.State = {}  # of the local optimizer: kept in the row, or new in every round
    if spec.keeps_moments:
        moments = {k.removeprefix(LOCAL): v for k, v in row.items() if k.startswith(LOCAL)}
    elif spec.steps_locally:
        fresh = work.local.start(shared[0])
        moments = {k: v.expand(len(shared), *v.shape).clone() for k, v in fresh.items()}
    total = loss = pull = shared.new_zeros(())
    sends_gradient = spec.sends == "gradient"  # else only the measured layer's mean is needed
    for step in range(spec.shared_steps):
        here, gradient, own = work.gradients.of(
            networks, row, step, shared=True, own=spec.joint_phases
        )
        assert gradient is not None
        if spec.clip is not None:
            gradient = clipped(gradient, spec.clip)
        measured = gradient if sends_gradient else gradient[:, work.norm_layer]
        total = total.add_(measured) if step else measured
        if spec.proximal:
            back = spec.proximal * (networks - shared)
            pull = pull + back if sends_gradient else pull
            gradient = gradient + back
        if spec.steps_locally:
            work.local.step(networks, gradient, moments)
        if own is not None:
            step_own(work.head, spec, row, own, options)
        if spec.report_loss == "after":
            here = work.gradients.losses(networks, row, step)
        loss = loss + here.double() / spec.shared_steps
    norm = (total[:, work.norm_layer] if sends_gradient else total).norm(dim=1).double()
    if sends_gradient:
        total = total + pull if spec.proximal else total
        update = total if spec.shared_steps == 1 else total.div_(spec.shared_steps)
    else:
        update = shared - networks
        if spec.sends == "delta":  # as a gradient
            update = update / (spec.shared_steps * spec.local_optimizer["lr"])
    return Report(update, loss, norm / spec.shared_steps)


def step_own(
    optimizer: optimizers.Optimizer,
    spec: LocalSpec,
    row: Row,
    gradient: Tensor | None,
    options: Mapping[str, Any] | None,
) -> None:
    """One step of what is the clients' own, such as their heads."""
    assert gradient is not None
    state = {k.removeprefix(OPTIMIZER): v for k, v in row.items() if k.startswith(OPTIMIZER)}
    if spec.head_clip is not None:
        gradient = clipped(gradient, spec.head_clip)
    optimizer.step(row[OWN], gradient, state, options)


def clipped(gradient: Tensor, most: float) -> Tensor:
    """Each row scaled to a length of ``most`` at most."""
    lengths = gradient.norm(dim=1, keepdim=True)
    scale: Tensor = (most / (lengths + 1e-6)).clamp(max=1.0)
    return gradient * scale


def log_classes(task: Task) -> float:
    """The cross-entropy of a guess among the classes of a task, which must have some."""
    if task.classes is None:
        raise ConfigError(f"first_loss='log_classes' needs a classification task, not {task.kind}")
    return task.loss_scale * math.log(task.classes)
