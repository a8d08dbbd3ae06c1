"""Optimisers by the names of torch.optim's classes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._checks import number, shown
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._fusing import Fused

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
    kind: frozenset(inspect.signature(kind.__init__).parameters) for kind in _CLASSES.values()
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
    rate = f"learning rate of optimizer {name!r}"
    if not 0 < number(rate, table["lr"]) < float("inf"):
        raise ConfigError(f"{rate} must be > 0, not {table['lr']!r}")
    for option in _WHERE & table.keys():
        if not isinstance(table[option], bool | None):
            raise ConfigError(
                f"option {option!r} of optimizer {name!r} must be true or false, "
                f"not {table[option]!r}"
            )
    _try(table)
    return table


def _try(table: Mapping[str, Any]) -> None:
    """One step of nothing: some options are not looked at before."""
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    optimizer = build([parameter], {k: v for k, v in table.items() if k not in _WHERE})
    try:
        optimizer.step()
    except Exception as error:
        raise _refusal(table, error) from error


def build(parameters: Iterable[Tensor], table: Mapping[str, Any]) -> torch.optim.Optimizer:
    """An optimiser from a resolved table, in its fastest form for where the parameters are."""
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


def is_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is Adam itself, and not one of those derived from it."""
    return type(optimizer) in (torch.optim.Adam, _CLASSES["adam"])


def capturable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps can be a part of a GPU graph: some count them on the host."""
    told = all(group.get("capturable", False) for group in optimizer.param_groups)
    return told or isinstance(optimizer, torch.optim.SGD)


class Joined:
    """One optimiser that steps many parameters, while each one's own holds the same moments.

    ``owners`` is each parameter's own optimiser, made from the same table.
    """

    def __init__(
        self, owners: Mapping[Tensor, torch.optim.Optimizer], table: Mapping[str, Any]
    ) -> None:
        self._owners = list(owners.items())
        self._optimizer = build(owners, table)
        self.link()

    def link(self) -> None:
        """Take the moments of the owners: those that were loaded are other tensors than before."""
        moments = self._optimizer.state
        for parameter, owner in self._owners:
            moments[parameter] = owner.state[parameter]

    @property
    def how(self) -> Mapping[str, Any]:
        """The options of a step."""
        group: Mapping[str, Any] = self._optimizer.param_groups[0]
        return group

    def set(self, options: Mapping[str, Any]) -> None:
        """Step with these options, such as a rate, from now on."""
        for group in self._optimizer.param_groups:
            group.update(options)

    def clear(self) -> None:
        """Forget the gradients: a parameter without one does not step."""
        self._optimizer.zero_grad()

    def step(self) -> None:
        """Every parameter that has a gradient takes a step."""
        self._optimizer.step()


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Let the compiler make Adam's kernel: torch's own leaves half of a large GPU idle.

    For an optimiser of one tensor. Any other, and Adam with more options, stays as it is.
    """
    first, *more = optimizer.param_groups
    alone = not more and len(first["params"]) == 1
    if not alone or not is_adam(optimizer) or any(first[option] for option in _BEYOND):
        return
    ordinary, update = optimizer.step, Fused(adam)

    def step() -> None:
        group = optimizer.param_groups[0]
        (parameter,) = group["params"]
        state = optimizer.state[parameter]
        if not state:
            ordinary()  # which also makes the moments
            return
        moments = state["exp_avg"], state["exp_avg_sq"], state["step"]
        how = group["lr"], *group["betas"], group["eps"]
        update(parameter.data, parameter.grad, *moments, *how)

    vars(optimizer)["step"] = step  # this optimiser's own, before its class's


_BEYOND = ("weight_decay", "amsgrad", "maximize", "differentiable")


def adam(
    x: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    step: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """One step of Adam (Kingma and Ba 2015, Algorithm 1), everything in place.

    The corrections of the bias are computed in double: in float32 1 - .999^t is off by 1e-5 at
    first, which is enough to let another ReLU open and the runs part.
    """
    step += 1
    count = step.double()
    rate, root = lr / (1 - beta1**count), (1 - beta2**count).sqrt()
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    below = square.sqrt().div_(root.to(x.dtype)).add_(eps)
    x.sub_(mean / below * rate.to(x.dtype))


def saved(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its ``state_dict`` as copies.

    Moments are cloned: a deep copy of a view holds all that it is of.
    """
    table = optimizer.state_dict()
    state = {
        key: {
            name: v.clone() if isinstance(v, Tensor) else copy.deepcopy(v)
            for name, v in moments.items()
        }
        for key, moments in table["state"].items()
    }
    return {"state": state, "param_groups": copy.deepcopy(table["param_groups"])}


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take over moments from a ``state_dict``, but not its options: those follow the device."""
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if moments := optimizer.state.get(parameter):
                _check_moments(moments, kept_moments(optimizer, parameter), parameter)


def _check_moments(moments: Mapping[str, Any], trial: Mapping[str, Any], parameter: Tensor) -> None:
    """A ValueError if these are not the moments that this optimiser keeps of this parameter."""
    if set(moments) != set(trial):
        raise ValueError(f"an optimizer keeps {sorted(trial)}, not {sorted(map(str, moments))}")
    for name, one in trial.items():
        found = moments[name]
        if isinstance(one, Tensor) != isinstance(found, Tensor):
            raise ValueError(f"{name} of an optimizer is {found!r:.40}")
        if isinstance(one, Tensor) and one.shape == (2,) * parameter.ndim:
            if found.shape != parameter.shape:
                raise ValueError(f"{name} of an optimizer has shape {tuple(found.shape)}")
        elif isinstance(one, Tensor) and one.ndim != found.ndim:
            raise ValueError(f"{name} of an optimizer has shape {tuple(found.shape)}")


def kept_moments(optimizer: torch.optim.Optimizer, like: Tensor) -> Mapping[str, Any]:
    """What the optimiser keeps after a step on a tiny parameter with as many axes."""
    tiny = torch.zeros((2,) * like.ndim, dtype=like.dtype, device=like.device, requires_grad=True)
    tiny.grad = torch.zeros_like(tiny)
    kind = type(optimizer)
    known = _OPTIONS[kind]
    trial = kind([tiny], **{k: v for k, v in optimizer.defaults.items() if k in known})
    trial.step()
    return dict(trial.state[tiny])
