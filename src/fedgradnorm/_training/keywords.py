"""The keywords of ``train``: methods, weightings and groups of settings as one weighting and
settings, and words on a keyword that is not one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._methods import DEFAULT, find_method
from fedgradnorm._round.settings import GROUPS, TOP, Settings, ungrouped, unknown
from fedgradnorm._runs.run import Run
from fedgradnorm._training.inputs import checked_clients, checked_weighting
from fedgradnorm.weighting import Weighting

CHOICES = ("method", "weighting", *TOP, *GROUPS)
"""The keywords that decide how a run is trained."""

_ELSEWHERE = {
    "start": "continue from a run by giving it as the network: fgn.train(run, clients)",
    "resume": "continue the run in a folder with fgn.resume(folder, network, clients)",
    "progress": "show progress with callbacks=[fgn.ShowProgress()], or give your function there",
}

F = TypeVar("F", bound=Callable[..., Any])


def explained(function: F) -> F:
    """Let an unknown keyword be an error that says where the setting is."""
    taken = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in taken:
                why = _ELSEWHERE.get(name) or unknown(name)
                raise ConfigError(f"{function.__name__}() takes no {name!r}: {why}")
        return function(*args, **given)

    return cast(F, call)


def chosen(given: Mapping[str, Any]) -> tuple[Weighting | None, Settings]:
    """The weighting and settings that keywords of ``train`` stand for."""
    method, weighting = given.get("method"), given.get("weighting")
    settings = Settings(**ungrouped({k: v for k, v in given.items() if k in (*TOP, *GROUPS)}))
    if method is None and not isinstance(weighting, Mapping):
        return checked_weighting(weighting), settings
    found = find_method(DEFAULT if method is None else method)
    if not isinstance(weighting, Mapping):
        weighting = checked_weighting(weighting)
    return found.weigh(weighting), found.applied(settings)


def started(network: nn.Module | Run, clients: Sequence[Client]) -> tuple[Run | None, nn.Module]:
    """The run to continue from, if ``network`` is one, and the network to train."""
    if not isinstance(network, Run):
        return None, network
    if network.shared is not None:
        return network, network.shared
    for client in checked_clients(clients):
        if client.name not in network.clients:
            raise ConfigError(
                f"nothing was shared in that run, so client {client.name!r}, which it does not "
                "know, has no network to start from; train it alone from a fresh network"
            )
    return network, next(iter(network.networks.values()))
