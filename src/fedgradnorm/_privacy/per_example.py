"""Sums of clipped gradients: each row's gradient by itself, none longer than a bound.

torch.func gives the gradients of many rows in one pass. Where a network cannot be mapped that way,
rows are taken in turn. A row whose gradient is not finite, or cannot be computed, counts as 0: no
row can make a round fail, which others would see.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._task import Task

log = logging.getLogger("fedgradnorm")

Parameters = dict[str, Tensor]
RowLoss = Callable[[Parameters, Tensor, Tensor], Tensor]
NUMBERS_AT_ONCE = 2**24  # of all rows' gradients together
KEPT_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True)
class Clipped:
    """The sum over rows of clipped gradients, as one vector in float64, and of clipped losses."""

    gradient: Tensor
    loss: float


class RowGradients:
    """Gradients of one loss, row by row, for the parameters that are given.

    ``loss`` takes parameters by name, and one row as a batch of one.
    """

    def __init__(self, loss: RowLoss, mapped: bool) -> None:
        self._loss, self._mapped = loss, mapped

    def clipped(
        self, parameters: Parameters, x: Tensor, y: Tensor, clip: float, loss_clip: float
    ) -> Clipped:
        """sum_i g_i min(1, clip / |g_i|) and sum_i min(loss_i, loss_clip) over the rows."""
        size = sum(p.numel() for p in parameters.values())
        total, losses = x.new_zeros(size, dtype=torch.float64), 0.0
        at_once = max(1, NUMBERS_AT_ONCE // max(1, size))
        for rows in torch.arange(len(x), device=x.device).split(at_once):
            if not len(rows):
                continue
            gradients, values = self._of_rows(parameters, x[rows], y[rows])
            total += _clipped_sum(gradients, clip)
            losses += float(clipped_losses(values, loss_clip).sum())
        return Clipped(total, losses)

    def _of_rows(self, parameters: Parameters, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self._mapped:
            try:
                return self.together(parameters, x, y)
            except Exception as error:
                log.warning("gradients one by one, because one of them fails: %s", error)
        return self._in_turn(parameters, x, y)

    def together(self, parameters: Parameters, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """All rows in one pass: gradients [rows, numbers] and losses [rows]."""
        each = vmap(grad_and_value(self._loss), in_dims=(None, 0, 0), randomness="different")
        with torch.no_grad():  # of what is outside: other parameters need no gradients
            gradients, losses = each(parameters, x[:, None], y[:, None])
        return torch.cat([gradients[k].flatten(1) for k in parameters], dim=1), losses

    def _in_turn(self, parameters: Parameters, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        own = {k: p.detach().requires_grad_() for k, p in parameters.items()}
        rows, losses = [], []
        for i in range(len(x)):
            try:
                with torch.enable_grad():
                    loss = self._loss(own, x[i : i + 1], y[i : i + 1])
                found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
                pairs = zip(found, own.values(), strict=True)
                rows.append(torch.cat([(p * 0 if g is None else g).flatten() for g, p in pairs]))
                losses.append(loss.detach())
            except Exception as error:
                log.warning("an example counts as 0, because its gradient fails: %s", error)
                rows.append(torch.cat([p.flatten() * 0 for p in own.values()]))
                losses.append(rows[-1].new_full((), torch.nan))
        return torch.stack(rows).detach(), torch.stack(losses)


def row_loss(task: Task, network: nn.Module | None, head: nn.Module) -> RowLoss:
    """The loss of a batch of one as a function of parameters named ``network.*`` and ``head.*``.

    Without a network x is what the network has made of a row.
    """

    def loss(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        features = x if network is None else functional_call(network, _of(parameters, "network"), x)
        return task.loss(functional_call(head, _of(parameters, "head"), features), y)

    return loss


def check_rows(task: Task, network: nn.Module, head: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Whether rows can be mapped; else they are taken in turn. A ConfigError if rows depend on
    each other.

    ``x`` and ``y`` are two rows. Layers with statistics of a batch, what draws at random, and what
    mixes rows in another way are refused.
    """
    for part, module in (("network", network), ("head", head)):
        for name, layer in module.named_modules():
            if isinstance(layer, KEPT_STATISTICS):
                raise ConfigError(
                    f"{type(layer).__name__} ({part} {name!r}) mixes the rows of a batch, so no "
                    "row's gradient is its own; use LayerNorm or GroupNorm"
                )
        inputs = x if part == "network" else _features(network, x)
        _check_buffers(part, module, inputs)
        _check_chance(part, module, inputs)
        _check_alone(part, module, inputs)
    parameters = named(network, "network") | named(head, "head")
    trial = RowGradients(row_loss(task, network, head), mapped=True)
    try:
        with torch.random.fork_rng(devices=[]):
            trial.together(parameters, x, y)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:160]
        log.info("rows one after another, since their gradients cannot be mapped: %s", reason)
        return False
    return True


def named(module: nn.Module, prefix: str) -> Parameters:
    """The parameters that training moves, by name, without their gradients' history."""
    found = module.named_parameters()
    return {f"{prefix}.{name}": p.detach() for name, p in found if p.requires_grad}


def _of(parameters: Mapping[str, Tensor], prefix: str) -> Parameters:
    start = prefix + "."
    return {k.removeprefix(start): p for k, p in parameters.items() if k.startswith(start)}


@torch.no_grad()
def _features(network: nn.Module, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        features: Tensor = copy.deepcopy(network)(x)
    return features


@torch.no_grad()
def _check_buffers(part: str, module: nn.Module, x: Tensor) -> None:
    """Refuse a module that changes its buffers as it runs: they would keep what rows were like."""
    trial = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    if not before:
        return
    with torch.random.fork_rng(devices=[]):
        trial(x)
    for name, buffer in trial.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ConfigError(
                f"the {part}'s buffer {name!r} changes as rows pass, without clipping or noise; "
                "use a layer that keeps no statistics"
            )


@torch.no_grad()
def _check_chance(part: str, module: nn.Module, x: Tensor) -> None:
    """Refuse dropout and the like: the masks of all examples would depend on each of them."""
    words = (
        "draws at random from a public seed; remove it from a network that a private client uses"
    )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise ConfigError(f"{type(layer).__name__} ({part} {name!r}) {words}")
    trial = copy.deepcopy(module).train()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        before = _generator_of(x)
        once, again = trial(x), trial(x)
        drawn = not torch.equal(before, _generator_of(x))
    if drawn or not torch.equal(once, again):
        raise ConfigError(f"the {part} {words}")


def _generator_of(x: Tensor) -> Tensor:
    """The state of the generator that layers draw from: it changes with every draw."""
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()


@torch.no_grad()
def _check_alone(part: str, module: nn.Module, x: Tensor) -> None:
    """Refuse a module in which a row's output depends on the other rows of its batch."""
    for training in (True, False):
        trial = copy.deepcopy(module).train(training)
        together = trial(x)
        for row in range(len(x)):
            among_copies = trial(x[[row] * len(x)])
            if not torch.allclose(together[row], among_copies[row], equal_nan=True):
                raise ConfigError(
                    f"the {part} mixes the rows of a batch, so one example changes what all others "
                    "give; use layers that look at each example by itself"
                )


def _clipped_sum(gradients: Tensor, clip: float) -> Tensor:
    """sum_i g_i min(1, clip / |g_i|), in float64."""
    rows = gradients.double()
    norm = rows.norm(dim=1)
    usable = torch.isfinite(norm)
    factor = torch.where(usable, clip / norm.clamp_min(clip), 0)
    return factor @ torch.where(usable[:, None], rows, 0)


def clipped_losses(losses: Tensor, clip: float) -> Tensor:
    """Losses from 0 to ``clip``; NaN counts as ``clip``."""
    return losses.double().nan_to_num(nan=clip, posinf=clip, neginf=0.0).clamp(0.0, clip)
