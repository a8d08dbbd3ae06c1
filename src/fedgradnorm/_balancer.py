"""Balance the losses of one network in an ordinary training loop, without clients or a server.

A step's loss is sum_i p_i F_i over the tasks i of the step. The weights p sum to the number of
tasks and come from any :class:`Weighting` that needs at most losses and gradient norms. With
theta the parameters of the norm layer, a task's gradient norm is

    G_i = || d F_i / d theta ||,    F_i without its weight

from one backward pass per task that ends at theta: it visits the task's head and this layer only.
"""

from __future__ import annotations

import copy
import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch import distributed as dist

from fedgradnorm import _checks as checks
from fedgradnorm._errors import ConfigError, ModelError, choose
from fedgradnorm.weighting import Needs, Signals, Weighting

log = logging.getLogger("fedgradnorm")

StepWith = Literal["new", "previous"]
IN_A_LOOP = {"phases": "joint", "step_with": "previous", "participation": 1.0}
"""Settings of methods that describe what an ordinary loop does, or that a balancer has too."""
KEPT = ("first_loss", "loss", "norm")
"""What is stored per task between steps, in addition to the weighting's own rows."""


def _unknown_keyword(name: str) -> ConfigError:
    return ConfigError(
        f"Balancer() takes no {name!r}; options of a weighting are given in a table, such as "
        'weighting={"gamma": 0.5}'
    )


class Balancer(nn.Module):
    """Weighs the losses of several tasks so that none dominates the shared network.

    It is a module without parameters, so it is saved with the model that it belongs to; ``eval()``
    and ``torch.no_grad()`` freeze the weights. In a process group, all ranks get the same weights:
    those of one process that sees the batches of all ranks.

    A task may be missing from a step. It keeps its last loss and gradient norm, which count in the
    next update, so tasks may also alternate. If a loss or gradient is not finite, the weights stay
    as they are and the loss is returned as it is, for a ``GradScaler`` to skip the step.

    Args:
        tasks: the names of the tasks.
        shared: the last layer that all tasks share, or its parameters: where gradients are
            measured. Weightings that need no gradient norm do without it.
        method: what decides the weights, by name: "fedgradnorm-direct" by default, or any method
            that needs losses and gradient norms only, such as "fedgradnorm" or "uw".
        weighting: options of the method, such as ``{"gamma": 0.5}``, or a weighting of your own
            instead of a method. It is copied.
        every: measure, and update the weights, in one of so many steps.
        warmup: number of steps with equal weights before the first measurement. Losses are
            compared with those of the first measurement.
        step_with: "new" weights, or those from "previous" steps, as in the GradNorm paper.
        scaler: the ``GradScaler`` of float16 training. Gradients are measured at its scale, where
            small ones do not vanish, and divided by it.
        group: the process group whose ranks share the weights; all ranks by default.

    >>> layer, heads = nn.Linear(3, 4), {"depth": nn.Linear(4, 1), "segmentation": nn.Linear(4, 2)}
    >>> balance = Balancer(["depth", "segmentation"], shared=layer)
    >>> features = layer(torch.ones(5, 3))
    >>> loss = balance({task: head(features).square().mean() for task, head in heads.items()})
    >>> loss.backward()
    >>> round(sum(balance.weights.values()), 9)
    2.0
    """

    @checks.explained(_unknown_keyword)
    def __init__(
        self,
        tasks: Sequence[str],
        *,
        shared: nn.Module | Tensor | Iterable[Tensor] | None = None,
        method: str | None = None,
        weighting: Weighting | Mapping[str, Any] | None = None,
        every: int = 1,
        warmup: int = 0,
        step_with: StepWith = "new",
        scaler: torch.amp.GradScaler | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tasks = tuple(checks.names("a balancer's tasks", tasks))
        if len(set(self.tasks)) < len(self.tasks):
            raise ConfigError(f"a balancer's tasks must differ, not {', '.join(self.tasks)}")
        self.every = checks.whole("a balancer's every", every, 1)
        self.warmup = checks.whole("a balancer's warmup", warmup, 0)
        checks.one_of("step_with", step_with, get_args(StepWith))
        if scaler is not None and not callable(getattr(scaler, "scale", None)):
            raise ConfigError(f"scaler must be a torch.amp.GradScaler, not {checks.shown(scaler)}")
        self.step_with, self.scaler, self.group = step_with, scaler, group
        self.weighting = _weighting(method, weighting)
        if method == "central":
            self.step_with = "previous"
        self.weighting.bind(self.tasks)
        self.steps = 0
        self._shared = _owners(shared)  # in a tuple: the layer is not a part of this module
        if self._needs_norms and not self._parameters_measured():
            kind = type(self.weighting).__name__
            given = f"{type(shared).__name__} has none that require a gradient"
            raise ModelError(
                f"{kind} measures gradients at the last shared layer, and needs its parameters; "
                f"{'none were given' if shared is None else given}: "
                "pass shared=, such as shared=network.backbone[-1]"
            )
        count = len(self.tasks)
        self._kept = {key: [math.nan] * count for key in KEPT}
        self._weights = [1.0] * count
        self._negative = set[str]()

    @property
    def weights(self) -> dict[str, float]:
        """Every task's current weight; they sum to the number of tasks."""
        return dict(zip(self.tasks, self._weights, strict=True))

    @property
    def norms(self) -> dict[str, float]:
        """Every task's last gradient norm at the norm layer; NaN before it was measured."""
        return dict(zip(self.tasks, self._kept["norm"], strict=True))

    def forward(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of the losses, to call ``backward`` on; in training, also one step."""
        self._check(losses)
        used = self._weights
        if self.training and torch.is_grad_enabled():
            since = self.steps - self.warmup
            self.steps += 1
            if since >= 0 and since % self.every == 0:
                self._update(losses)
                used = used if self.step_with == "previous" else self._weights
        weighted = [used[self.tasks.index(task)] * loss for task, loss in losses.items()]
        if not weighted:  # a step without any task
            return torch.zeros((), requires_grad=torch.is_grad_enabled())
        total = weighted[0]
        for loss in weighted[1:]:
            total = total + loss.to(total.device)
        return total

    def _check(self, losses: Mapping[str, Tensor]) -> None:
        if not isinstance(losses, Mapping):
            raise ConfigError(
                "a balancer is called with one loss per task, such as "
                f"balance({{{self.tasks[0]!r}: loss}}), not with {checks.shown(losses)}"
            )
        for task, loss in losses.items():
            choose(task, self.tasks, "task of this balancer")
            if not isinstance(loss, Tensor):
                raise ConfigError(
                    f"the loss of task {task!r} must be a tensor, without .item(), not "
                    f"{checks.shown(loss)}; leave the task out of steps that have no loss for it"
                )
            if loss.dim():
                raise ConfigError(
                    f"the loss of task {task!r} has shape {tuple(loss.shape)}: reduce it to a "
                    "single number, for example with .mean()"
                )

    def _update(self, losses: Mapping[str, Tensor]) -> None:
        """New weights from this step's losses and norms, unless one of them is not finite."""
        found = self._measured(losses)
        if not all(math.isfinite(value) for pair in found.values() for value in pair):
            return
        for task, (loss, norm) in found.items():
            row = self.tasks.index(task)
            self._kept["loss"][row], self._kept["norm"][row] = loss, norm
            if math.isnan(self._kept["first_loss"][row]):
                self._kept["first_loss"][row] = loss
            self._notice_negative(task, loss)
        first, now, norms = (self._kept[key] for key in KEPT)
        tiny = sys.float_info.min
        ratios = [a / max(b, tiny) for a, b in zip(now, first, strict=True)]
        columns = torch.tensor([[1.0] * len(now), now, ratios, norms], dtype=torch.float64)
        active = torch.tensor([not math.isnan(value) for value in now])
        signals = Signals(active, *columns)
        self._weights = self.weighting.update(signals).tolist()

    def _notice_negative(self, task: str, loss: float) -> None:
        """Warn once per task whose loss has no ratio to its first one, where that decides."""
        ratio = "loss_ratio" in self.weighting.losses and self.weighting.needs & Needs.LOSS
        if loss >= 0 or not ratio or getattr(self.weighting, "gamma", 1) == 0:
            return
        if task not in self._negative:
            log.warning(
                "the loss of task %r is negative (%.3g), so its ratio to the first loss is no "
                "measure of progress and its weight may vanish; add a constant to the loss, or "
                'choose method="equal-norms", which compares gradient norms only', task, loss,
            )  # fmt: skip
        self._negative.add(task)

    def _measured(self, losses: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
        """Loss and gradient norm of the tasks of this step, on any rank; one transfer to the host.

        A small network's step on a GPU is bound by launching kernels: all norms take one launch.
        """
        parameters = self._parameters_measured() if self._needs_norms else []
        rows = {task: self._gradient(task, loss, parameters) for task, loss in losses.items()}
        values = [loss.detach() for loss in losses.values()]
        if _ranks(self.group) > 1:
            return self._averaged(losses, rows, parameters)
        if not losses:
            return {}
        parts = [part for row in rows.values() for part in row]
        norms = torch._foreach_norm(parts) if parts else ()
        device = values[0].device
        found = torch.stack([value.to(device) for value in (*values, *norms)]).tolist()
        lengths = iter(found[len(values) :])
        return {
            task: (loss, math.hypot(*(next(lengths) for _ in parameters)))
            for task, loss in zip(losses, found, strict=False)
        }

    def _gradient(self, task: str, loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """A task's gradient at the norm layer, in parts; none if no norm is needed."""
        if not parameters:
            return []
        start = torch.ones_like(loss)
        if self.scaler is not None:
            start = self.scaler.scale(start)
        found: Sequence[Tensor | None] = (None,)
        if loss.requires_grad:
            try:
                found = torch.autograd.grad(
                    loss, parameters, start, retain_graph=True, allow_unused=True
                )
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise ModelError(
                    f"the gradient of task {task!r} at shared= cannot be measured: call the "
                    "balancer before backward(), and compile neither that layer nor what follows "
                    f"it ({checks.shortened(str(error))})"
                ) from error
        if all(part is None for part in found):
            raise ModelError(
                f"the loss of task {task!r} does not depend on the parameters given as shared=: "
                "pass a layer that all tasks use, and leave a task out of steps without a loss"
            )
        kind = _precision(parameters)
        parts = zip(found, parameters, strict=True)
        whole = [(torch.zeros_like(p) if part is None else part).to(kind) for part, p in parts]
        return whole if self.scaler is None else [part / start.to(part) for part in whole]

    def _averaged(
        self,
        losses: Mapping[str, Tensor],
        rows: Mapping[str, Sequence[Tensor]],
        parameters: Sequence[Tensor],
    ) -> dict[str, tuple[float, float]]:
        """Means over the ranks that have a task. Every rank sends the same shape, whatever it has.

        So ranks may have different tasks, or none. Gradients are averaged before their norm is
        taken: a mean of norms would not be the norm of the gradient that all ranks step along.
        """
        width = sum(p.numel() for p in parameters)
        gpu = "nccl" in dist.get_backend(self.group)
        table = torch.zeros(
            len(self.tasks),
            2 + width,
            dtype=_precision(parameters),
            device="cuda" if gpu else "cpu",
        )
        for task, loss in losses.items():
            here = table[self.tasks.index(task)]
            here[0], here[1] = 1.0, loss.detach()
            if rows[task]:
                here[2:] = torch.cat([part.reshape(-1) for part in rows[task]])
        dist.all_reduce(table, group=self.group)
        count, mean = table[:, 0], table[:, 1:] / table[:, :1]
        found = torch.stack([count, mean[:, 0], mean[:, 1:].norm(dim=1)], dim=1).tolist()
        present = zip(self.tasks, found, strict=True)
        return {task: (loss, norm) for task, (ranks, loss, norm) in present if ranks}

    @property
    def _needs_norms(self) -> bool:
        return bool(self.weighting.needs & Needs.NORM)

    def _parameters_measured(self) -> list[Tensor]:
        """Asked at every step: a module may have been given other parameters."""
        found: list[Tensor] = []
        for owner in self._shared:
            found += owner.parameters() if isinstance(owner, nn.Module) else [owner]
        return [parameter for parameter in found if parameter.requires_grad]

    def get_extra_state(self) -> dict[str, Any]:
        """What :meth:`state_dict` saves: plain values and tensors, which safe loading accepts."""
        return {
            "tasks": list(self.tasks),
            "steps": self.steps,
            "weights": list(self._weights),
            "kept": copy.deepcopy(self._kept),
            "weighting": self.weighting.state_dict(),
        }

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what was saved, for a balancer of the same tasks in the same order."""
        if list(state["tasks"]) != list(self.tasks):
            raise ConfigError(
                f"the saved balancer weighs {', '.join(state['tasks'])}, not "
                f"{', '.join(self.tasks)}: make it with the same tasks in the same order"
            )
        if sorted(state["weighting"]["rows"]) != sorted(self.weighting.rows):
            raise ConfigError(
                "the saved balancer had another weighting than "
                f"{self.weighting!r}: make it with the method it was saved with"
            )
        self.weighting.load_state_dict(state["weighting"])
        self.steps, self._weights = state["steps"], list(state["weights"])
        self._kept = copy.deepcopy(dict(state["kept"]))

    def extra_repr(self) -> str:
        return f"{', '.join(self.tasks)}; {type(self.weighting).__name__}"


def _weighting(method: str | None, given: object) -> Weighting:
    """The weighting of a method with these options, or the given one."""
    if method is None and isinstance(given, Weighting):
        weighting = given
    elif isinstance(given, Weighting | Mapping | None):
        weighting = _of_method(method, given)
    else:
        way = f"; a method is given as method={given!r}" if isinstance(given, str) else ""
        raise ConfigError(
            "weighting must be options of the method, or a weighting such as fgn.GradNorm(), not "
            f"{checks.shown(given)}{way}"
        )
    kind = type(weighting)
    if weighting.needs & Needs.SIZE:
        raise ConfigError(f"{kind.__name__} needs numbers of examples, which a loss lacks")
    products = weighting.needs & (Needs.GRAM | Needs.GRADIENT)
    if products or kind.direction is not Weighting.direction:
        raise ConfigError(
            f"{kind.__name__} compares the whole gradients of all tasks. A balancer measures "
            "losses and gradient norms only: choose a weighting that needs no more, such as "
            "fgn.GradNorm, or an aggregator of TorchJD"
        )
    return copy.deepcopy(weighting)


def _of_method(name: str | None, given: Weighting | Mapping[str, Any] | None) -> Weighting:
    from fedgradnorm._methods import DEFAULT, find_method  # which knows settings of federations

    method = find_method(DEFAULT if name is None else name)
    federated = [key for key, value in method.settings.items() if IN_A_LOOP.get(key) != value]
    if federated:
        raise ConfigError(
            f"method {name!r} sets {', '.join(federated)}, which an ordinary training loop lacks; "
            f"give its weighting alone: weighting=fgn.methods()[{name!r}].build()"
        )
    return method.weigh(given)


def _owners(shared: nn.Module | Tensor | Iterable[Tensor] | None) -> tuple[Any, ...]:
    if shared is None:
        return ()
    owners = (shared,) if isinstance(shared, nn.Module | Tensor) else tuple(shared)
    for owner in owners:
        if not isinstance(owner, nn.Module | Tensor):
            raise ConfigError(
                f"shared must be a layer or its parameters, not {checks.shown(owner)}"
            )
    return owners


def _precision(parameters: Sequence[Tensor]) -> torch.dtype:
    """Of norms: the layer's, and at least float32. It must not depend on what a rank has."""
    return torch.promote_types(parameters[0].dtype, torch.float32) if parameters else torch.float64


def _ranks(group: dist.ProcessGroup | None) -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1
