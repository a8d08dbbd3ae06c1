"""A client's part of a round: what it keeps to itself, and what it reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.client_state import ClientState
from fedgradnorm._round.evaluation import evaluate
from fedgradnorm._round.lr_schedules import Rates, ScheduleSpec
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import Inputs, call
from fedgradnorm.models._streamed.rows import Targets
from fedgradnorm.tasks._task import Task

FirstLoss = Literal["dataset", "first_round", "log_classes"]
Update = Literal["gradient", "delta", "model"]
ReportLoss = Literal["before", "after"]
Schedule = Literal["alternating", "together"]
Rows = tuple[Inputs, Targets]
"""A split of a client: inputs and targets."""
Batch = Callable[[int], tuple[Inputs, Tensor]]
"""The rows of a step."""


@dataclass(frozen=True)
class LocalSettings:
    """How a client works: the open points of the algorithm that concern it, by name."""

    head_steps: int = 1
    shared_steps: int = 1
    first_loss: FirstLoss = "dataset"
    update: Update = "gradient"
    report_loss: ReportLoss = "before"
    schedule: Schedule = "alternating"
    head_optimizer: Mapping[str, Any] | None = None
    local_optimizer: Mapping[str, Any] | None = None
    proximal: float = 0.0
    head_schedule: ScheduleSpec | None = None
    clip: float | None = None
    head_clip: float | None = None
    rounds: int | None = None

    def head_rates(self) -> Rates:
        """The rate of the heads' optimisers in each round."""
        assert self.head_optimizer is not None
        return Rates(self.head_schedule, self.head_optimizer, self.rounds)

    @property
    def steps(self) -> int:
        """Batches a client reads in a round: step s of either phase takes batch s."""
        return self.shared_steps if self.together else max(self.head_steps, self.shared_steps)

    @property
    def together(self) -> bool:
        """Whether head and shared network step together, on one backward pass."""
        return self.schedule == "together"

    @property
    def steps_locally(self) -> bool:
        """Whether the local copy of the shared network moves at all."""
        return self.shared_steps > 1 or self.update != "gradient" or self.report_loss == "after"


@dataclass(frozen=True)
class Report:
    """What a client sends: about ``shared``, its pace, and its loudness."""

    update: Tensor
    loss: float
    loss_ratio: float
    gauge_norm: float

    @property
    def finite(self) -> bool:
        """Whether every number in it is usable."""
        scalars = (self.loss, self.loss_ratio, self.gauge_norm)
        return all(map(math.isfinite, scalars)) and bool(torch.isfinite(self.update).all())


def local_round(
    client: Client,
    state: ClientState,
    network: FlatNetwork,
    shared: Tensor,
    gauge: Tensor,
    batch: Batch,
    data: Rows,
    how: LocalSettings,
) -> Report:
    """One client's round (Algorithm 2, client part).

    First ``head_steps`` updates of the head on the frozen ``shared``; then ``shared_steps``
    gradients on ``shared`` with the head frozen, stepping a local copy between them:

        update = mean_s grad F(omega_s),   gauge_norm = |update on the gauge|,
        loss_ratio = mean_s F(omega_s) / F_0

    With ``proximal`` = mu > 0 (FedProx) the local steps, and so the update, follow the gradient of
    F + mu/2 |omega_s - shared|^2; the gauge norm and the loss stay those of F. With ``clip`` = c
    each of these gradients g is first scaled by min(1, c / |g|). ``head_clip`` does the same to
    each gradient of the head and what is private, taken together.

    ``network`` is a scratch copy, ``batch(s)`` the rows of step s, ``data`` all training rows.
    """
    network.vector.copy_(shared)
    network.module.train()
    state.head.train()
    if state.stem is not None:
        state.stem.train()
    if state.first_loss is None and how.first_loss != "first_round":
        state.first_loss = first_loss(client.task, state, network, data, how.first_loss)
    if not how.together:
        head_phase(client.task, state, network, batch, how.head_steps, how.head_clip)
    gradient, pull, loss = _shared_phase(client.task, state, network, shared, batch, how)
    if state.first_loss is None:
        state.first_loss = loss
    update = gradient + pull if how.proximal else gradient
    if how.update != "gradient":
        update = shared - network.vector
    if how.update == "delta":
        assert how.local_optimizer is not None
        update = update / (how.shared_steps * how.local_optimizer["lr"])
    state.rounds += 1
    return Report(
        update=update,
        loss=loss,
        loss_ratio=loss / max(state.first_loss, torch.finfo(shared.dtype).tiny),
        gauge_norm=float(gradient[gauge].norm()),
    )


def head_phase(
    task: Task,
    state: ClientState,
    network: FlatNetwork,
    batch: Batch,
    steps: int,
    clip: float | None = None,
) -> None:
    """``steps`` updates of the head and what is private, with the shared network as it is."""
    front = state.front(network.module)
    for step in range(steps):
        x, y = batch(step)
        with torch.set_grad_enabled(state.reaches_in):
            features = call(front, x)
        state.optimizer.zero_grad()
        task.loss(state.head(features), y).backward()
        clip_gradients(state.parameters(), clip)
        state.optimizer.step()


def _shared_phase(
    task: Task,
    state: ClientState,
    network: FlatNetwork,
    shared: Tensor,
    batch: Batch,
    how: LocalSettings,
) -> tuple[Tensor, Tensor, float]:
    """Mean gradient, mean proximal pull and mean loss over the steps on the shared network."""
    assert how.local_optimizer is not None
    local = nn.Parameter(network.vector)
    local.grad = network.gradient
    optimizer = optimizers.build([local], how.local_optimizer)
    gradient, loss = torch.zeros_like(network.vector), 0.0
    pull = torch.zeros_like(network.vector) if how.proximal else gradient
    front = state.front(network.module)
    for step in range(how.shared_steps):
        x, y = batch(step)
        network.gradient.zero_()
        state.optimizer.zero_grad()
        here = task.loss(state.head(call(front, x)), y)
        here.backward()
        clip_gradients([local], how.clip)
        gradient += network.gradient / how.shared_steps
        if how.proximal:
            back = how.proximal * (network.vector - shared)
            network.gradient += back
            pull += back / how.shared_steps
        if how.steps_locally:
            optimizer.step()
        if how.together:
            clip_gradients(state.parameters(), how.head_clip)
            state.optimizer.step()
        if how.report_loss == "after":
            with torch.no_grad():
                here = task.loss(state.head(call(front, x)), y)
        loss += float(here.detach()) / how.shared_steps
    return gradient, pull, loss


def clip_gradients(parameters: Iterable[Tensor], most: float | None) -> None:
    """Scale the gradients, as one vector, to a length of ``most`` at most; None: leave them."""
    if most is not None:
        nn.utils.clip_grad_norm_(parameters, most)


def clip_factors(lengths: Tensor, most: float) -> Tensor:
    """What gradients of these lengths are scaled by: the formula of ``clip_grad_norm_``."""
    return (most / (lengths + 1e-6)).clamp(max=1.0)


def first_loss(
    task: Task,
    state: ClientState,
    network: FlatNetwork,
    data: Rows,
    kind: FirstLoss,
) -> float:
    """F_0: the loss over the training data before any update, or log C for ``log_classes``."""
    if kind == "dataset":
        return evaluate(task, state.front(network.module), state.head, *data)["loss"]
    return log_classes(task)


def log_classes(task: Task) -> float:
    """The cross-entropy of a guess among the classes of a task, which must have some."""
    if task.classes is None:
        raise ConfigError(f"first_loss='log_classes' needs a classification task, not {task.kind}")
    return task.loss_scale * math.log(task.classes)
