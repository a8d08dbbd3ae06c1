"""Optimizers by the names of torch.optim's classes, as pure functions of rows.

SGD, Adam and AdamW are written once, for matrices with one row per client, and are used for heads,
local copies of the network and the server. Any other class of torch.optim runs row by row.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import flag, number, shown
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._state.table import Layout

OptimizerSpec = str | Mapping[str, Any]
"""A torch.optim class by name ("adam"), or a table {"name": "sgd", "lr": 0.1, "momentum": 0.9}."""

_UNUSABLE = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
"""The base class, one that needs a closure, and one that needs sparse gradients."""


def _light(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The class without the calls that load torch's compiler: half of what torch takes to load.

    With them torch keeps its compiler out of these methods. Nothing here compiles them.
    """
    ordinary = inspect.unwrap(kind.step)

    def step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return ordinary(self, closure)

    others = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    bare = {name: inspect.unwrap(getattr(kind, name)) for name in others}
    return type(kind.__name__, (kind,), {"step": step, "__doc__": kind.__doc__, **bare})


_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): _light(value)
    for name, value in vars(torch.optim).items()
    if isinstance(value, type)
    and issubclass(value, torch.optim.Optimizer)
    and value not in _UNUSABLE
}

_OPTIONS = {
    kind: frozenset(inspect.signature(kind.__init__).parameters) - {"self", "params"}
    for kind in _CLASSES.values()
}
"""The names of each class's options, which are asked for again for every client."""

_WHERE = {"foreach", "fused", "capturable"}
"""Options that say how a step is computed, which depends on the device."""


def resolve(spec: OptimizerSpec, lr: float) -> dict[str, Any]:
    """The specification as a full table: name, lr, and the class's own options."""
    if not isinstance(spec, str | Mapping):
        raise ConfigError(f"an optimizer is a name or a table with a name, not {shown(spec)}")
    table: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = choose(str(table.pop("name", "adam")).lower(), _CLASSES, "optimizer")
    table = {"name": name, "lr": lr, **table}
    for option in table.keys() - {"name", "keep"}:
        choose(option, sorted(_OPTIONS[_CLASSES[name]]), f"option of optimizer {name!r}:")
    if "keep" in table:
        flag(f"option 'keep' of optimizer {name!r}", table["keep"])
    rate = f"learning rate of optimizer {name!r}"
    if not 0 < number(rate, table["lr"]) < float("inf"):
        raise ConfigError(f"{rate} must be > 0, not {table['lr']!r}")
    for option in _WHERE & table.keys():
        if not isinstance(table[option], bool | None):
            raise ConfigError(
                f"option {option!r} of optimizer {name!r} must be true or false, "
                f"not {table[option]!r}"
            )
    # One step of nothing: some options are not looked at before.
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    optimizer = build([parameter], {k: v for k, v in table.items() if k not in _WHERE | {"keep"}})
    try:
        optimizer.step()
    except Exception as error:
        raise _refusal(table, error) from error
    return table


def build(parameters: Iterable[Tensor], table: Mapping[str, Any]) -> torch.optim.Optimizer:
    """An optimizer from a resolved table, in its fastest form for where the parameters are."""
    parameters = list(parameters)
    options = {key: value for key, value in table.items() if key != "name"}
    options = {**_fastest(_CLASSES[table["name"]], parameters), **options}
    try:
        return _CLASSES[table["name"]](parameters, **options)
    except Exception as error:  # torch checks some options, and stumbles over others
        raise _refusal(table, error) from error


def _refusal(table: Mapping[str, Any], error: Exception) -> ConfigError:
    reason = " ".join(str(error).split()) or type(error).__name__
    given = {key: value for key, value in table.items() if key != "name"}
    return ConfigError(f"optimizer {table['name']!r}: {reason} (its options: {shown(given)})")


def _fastest(kind: type[torch.optim.Optimizer], parameters: list[Tensor]) -> dict[str, bool]:
    """One fused kernel, which on a GPU can also be captured into a graph, where there is one."""
    known = _OPTIONS[kind]
    on_gpu = all(p.is_cuda for p in parameters)
    usable = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    options = {"fused": usable and bool(parameters), "capturable": on_gpu and bool(parameters)}
    return {key: True for key, wanted in options.items() if wanted and key in known}


FEW = 16  # rows up to which torch's kernel, which is given them one by one, is the faster on a CPU

State = dict[str, Tensor]
"""What an optimizer keeps, one row per client in every tensor."""


class Optimizer(ABC):
    """A pure optimizer over rows: parameters and gradients are matrices ``[rows, numbers]``.

    Every row has a step count of its own, so rows that joined later are corrected for their own
    bias. The same object serves a client's head, its local copy of the network, and the server.
    ``in_rows`` says whether many rows are stepped in one call.
    """

    in_rows: ClassVar[bool] = True

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = dict(table)

    @abstractmethod
    def start(self, like: Tensor) -> State:
        """The state of one row before its first step; ``like`` is a row of parameters."""

    @abstractmethod
    def step(
        self, x: Tensor, gradient: Tensor, state: State, options: Mapping[str, Any] | None = None
    ) -> None:
        """Move ``x`` and ``state`` in place; ``options`` override the table (a schedule's rate)."""


class SGD(Optimizer):
    """x <- x - lr d, with d = g + decay x; with momentum b <- mu b + (1 - dampening) d first.

    A row's first momentum is d itself, as in torch.
    """

    def start(self, like: Tensor) -> State:
        """A momentum, where there is one, and the count that tells the first step."""
        if not self.table.get("momentum"):
            return {}
        return {"step": like.new_zeros((), dtype=torch.float64), "momentum": torch.zeros_like(like)}

    @torch.no_grad()
    def step(
        self, x: Tensor, gradient: Tensor, state: State, options: Mapping[str, Any] | None = None
    ) -> None:
        how = {**self.table, **(options or {})}
        d = -gradient if how.get("maximize") else gradient
        if decay := how.get("weight_decay", 0.0):
            d = d.add(x, alpha=decay)
        if momentum := how.get("momentum", 0.0):
            b = state["momentum"]
            if dampening := how.get("dampening", 0.0):
                first = (state["step"] == 0).view(-1, 1)
                moved = b.mul(momentum).add_(d, alpha=1 - dampening)
                b.copy_(torch.where(first, d, moved))
            else:
                b.mul_(momentum).add_(d)
            state["step"] += 1
            d = d.add(b, alpha=momentum) if how.get("nesterov") else b
        x.add_(d, alpha=-how["lr"])


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, Algorithm 1), or AdamW (Loshchilov and Hutter 2019) by name.

        m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2
        x <- x - lr / (1 - b1^t)  m / (sqrt(v) / sqrt(1 - b2^t) + eps)

    Bias corrections are computed in double precision: in float32 1 - .999^t is off by 1e-5 at
    first, enough to let another ReLU open and two runs part.
    """

    def start(self, like: Tensor) -> State:
        """Zero moments."""
        zero = torch.zeros_like(like)
        return {"step": like.new_zeros((), dtype=torch.float64), "m": zero, "v": zero.clone()}

    @torch.no_grad()
    def step(
        self, x: Tensor, gradient: Tensor, state: State, options: Mapping[str, Any] | None = None
    ) -> None:
        how = {**self.table, **(options or {})}
        (b1, b2), lr, eps = how.get("betas", (0.9, 0.999)), how["lr"], how.get("eps", 1e-8)
        decoupled = self.table["name"] == "adamw"
        decay = how.get("weight_decay", 0.01 if decoupled else 0.0)
        step, m, v = state["step"], state["m"], state["v"]
        step += 1
        if not len(x):
            return
        if x.is_contiguous() and (len(x) <= FEW or x.is_cuda):  # torch's kernel reads rows once
            kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
            steps = step.float()  # as the kernel wants them
            kernel(
                x.unbind(), gradient.unbind(), m.unbind(), v.unbind(), [], steps.unbind(),
                lr=lr, beta1=b1, beta2=b2,
                weight_decay=decay, eps=eps, amsgrad=False, maximize=bool(how.get("maximize")),
            )  # fmt: skip
            return
        g = -gradient if how.get("maximize") else gradient
        if decay and decoupled:
            x.mul_(1 - lr * decay)
        elif decay:
            g = g.add(x, alpha=decay)
        rate = (lr / (1 - b1**step)).to(x.dtype).unsqueeze(1)
        root = (1 - b2**step).sqrt().to(x.dtype).unsqueeze(1)
        m.lerp_(g, 1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        below = v.sqrt().div_(root).add_(eps)
        x.sub_((m / below).mul_(rate))


class Torch(Optimizer):
    """Any other class of torch.optim, row by row and parameter by parameter.

    ``layout`` tells where the parameters are in a row. What the class keeps is stored as tensors,
    which are ignored until the row has taken its first step.
    """

    in_rows = False

    def __init__(self, table: Mapping[str, Any], layout: Layout) -> None:
        super().__init__(table)
        self._layout = layout

    def start(self, like: Tensor) -> State:
        """Room for all that the class keeps, found out by a step on zeros."""
        found: State = {"step": like.new_zeros((), dtype=torch.float64)}
        for place, parameter in enumerate(self._parameters(like[None])):
            parameter.grad = torch.zeros_like(parameter)
            trial = build([parameter], self.table)
            trial.step()
            for key, value in trial.state[parameter].items():
                found[f"{place}.{key}"] = torch.as_tensor(value).detach().clone().to(like.device)
        return found

    def step(
        self, x: Tensor, gradient: Tensor, state: State, options: Mapping[str, Any] | None = None
    ) -> None:
        """One step of every row, each by an optimizer of its own."""
        for row in range(len(x)):
            parameters = self._parameters(x[row : row + 1])
            gradients = self._parameters(gradient[row : row + 1])
            optimizer = build(parameters, {**self.table, **(options or {})})
            for place, (parameter, own) in enumerate(zip(parameters, gradients, strict=True)):
                parameter.grad = own.detach().clone()
                if state["step"][row] > 0:
                    kept = optimizer.state[parameter]
                    kept |= {k: v[row].clone() for k, v in self._of(place, state).items()}
            optimizer.step()
            with torch.no_grad():
                for place, parameter in enumerate(parameters):
                    for key, value in optimizer.state[parameter].items():
                        state[f"{place}.{key}"][row] = torch.as_tensor(value)
                x[row] = torch.cat([p.detach().flatten() for p in parameters])
                state["step"][row] += 1

    def _parameters(self, row: Tensor) -> list[Tensor]:
        views = self._layout.views(row.detach()).values()
        return [view[0].clone().requires_grad_() for view in views]

    def _of(self, place: int, state: State) -> State:
        begin = f"{place}."
        return {k.removeprefix(begin): v for k, v in state.items() if k.startswith(begin)}


_IN_ROWS = {
    "sgd": (SGD, {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"}),
    "adam": (Adam, {"lr", "betas", "eps", "weight_decay", "maximize"}),
    "adamw": (Adam, {"lr", "betas", "eps", "weight_decay", "maximize"}),
}
"""The optimizers that step many rows at once, and the options that they know."""


def make(table: Mapping[str, Any], layout: Layout) -> Optimizer:
    """The optimizer of a resolved table, for rows that ``layout`` describes."""
    kind, known = _IN_ROWS.get(table["name"], (None, set()))
    given = {k for k, v in table.items() if v and k not in _WHERE | {"name", "keep"}}
    if kind is None or not given <= known:
        return Torch({k: v for k, v in table.items() if k != "keep"}, layout)
    return kind(table)
