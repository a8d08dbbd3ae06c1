"""The arguments of ``train``: each is checked, with an error that says how to give it.

Method, weighting, option groups and callbacks become one weighting, settings and callbacks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from fedgradnorm import _checks as checks
from fedgradnorm._checks import shortened, shown, whole
from fedgradnorm._client import Client
from fedgradnorm._engines import ranks
from fedgradnorm._engines.ranks import World
from fedgradnorm._errors import ConfigError, DataError, ModelError
from fedgradnorm._launched import asked_for
from fedgradnorm._methods import DEFAULT, find_method
from fedgradnorm._round.settings import (
    OPTIONS,
    RECORDED,
    TOP,
    Settings,
    recorded,
    said,
    ungrouped,
    unknown,
)
from fedgradnorm._runs.folder import Place
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import Callback, ShowProgress
from fedgradnorm.models._flat import require_gpu
from fedgradnorm.weighting import Equal, Weighting

log = logging.getLogger("fedgradnorm")

CHOICES = ("method", "weighting", *TOP, *OPTIONS)
"""The keywords of ``train`` that decide how a run is trained, with ``callbacks``."""
HOOKS = ("on_start", "on_round", "on_evaluation", "on_end")
"""The methods of a callback that training calls."""

_ELSEWHERE = {
    "start": "continue from a run by giving it as the network: fgn.train(run, clients)",
    "resume": "continue the run in a folder with fgn.resume(folder, network, clients)",
    "progress": "show progress with callbacks=[fgn.ShowProgress()], or give your function there",
}

F = TypeVar("F", bound=Callable[..., Any])


def explained(function: F) -> F:
    """Let an unknown keyword be an error that says where the setting is."""
    return checks.explained(lambda name: refused(function.__name__, name))(function)


def refused(function: str, name: str) -> ConfigError:
    """Why a function takes no keyword of that name, and what to give instead."""
    why = _ELSEWHERE.get(name) or unknown(name)
    if function == "resume" and name in (*CHOICES, *RECORDED):
        why = (
            "a resumed run keeps its settings; to continue with others, start a new run from it: "
            "fgn.train(fgn.load(folder), clients, ...)"
        )
    return ConfigError(f"{function}() takes no {name!r}: {why}")


def chosen(given: Mapping[str, Any]) -> tuple[Weighting, Settings, list[Callback]]:
    """The weighting, settings and callbacks that keywords of ``train`` stand for.

    A weighting alone is no method: no settings come with it. With neither, the default method's
    weighting is taken, or ``Equal`` where nothing is shared.
    """
    method, weighting = given.get("method"), given.get("weighting")
    options, callbacks = divided_callbacks(given.get("callbacks", ()))
    told = {k: v for k, v in given.items() if k in (*TOP, *OPTIONS)} | recorded(options)
    settings = Settings(**ungrouped(told))
    if isinstance(weighting, type) and issubclass(weighting, Weighting):
        name = weighting.__name__
        raise ConfigError(f"weighting is the class {name}; give an instance, {name}()")
    if not isinstance(weighting, Weighting | Mapping | None):
        way = f"; a method is given as method={weighting!r}" if isinstance(weighting, str) else ""
        raise ConfigError(
            "weighting must be an object such as fgn.GradNorm(), or a table of options, not "
            f"{shown(weighting)}{way}"
        )
    if method is None and isinstance(weighting, Weighting):
        return weighting, settings, callbacks
    if method is None and weighting is None and settings.share == "none":
        return Equal(), settings, callbacks
    found = find_method(DEFAULT if method is None else method)
    return found.weigh(weighting), found.applied(settings, said(told)), callbacks


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


def check_is_module(network: object) -> None:
    """A ModelError unless the network is a module."""
    if isinstance(network, nn.Module):
        return
    if isinstance(network, type) and issubclass(network, nn.Module):
        name = network.__name__
        raise ModelError(f"the shared network is the class {name}; give an instance, {name}(...)")
    raise ModelError(f"the shared network must be a torch.nn.Module, not {shown(network)}")


def checked_clients(clients: object) -> list[Client]:
    """The clients, a row for each task, as a list; a DataError unless each of them is one."""
    if not isinstance(clients, Iterable):
        raise DataError(f"clients must be a list of fgn.Client, not {type(clients).__name__}")
    try:
        given = list(clients)
    except TypeError as error:  # an array of one number is an Iterable, in name
        raise DataError(f"clients must be a list of fgn.Client: {error}") from error
    for i, client in enumerate(given):
        if not isinstance(client, Client):
            way = f"; give clients[{i}].client(name)" if hasattr(client, "client") else ""
            raise DataError(f"clients[{i}] must be an fgn.Client, not {type(client).__name__}{way}")
    return [row for client in given for row in client.rows]


def checked_folder(folder: object) -> Place | None:
    """The run's folder, if one is given; a ConfigError unless it is a path or the lock of one."""
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not str(folder) or "\0" in str(folder):
        raise ConfigError(f"folder must be the path of a folder, not {shown(folder)}")
    return folder


def divided_callbacks(callbacks: object) -> tuple[list[object], list[Callback]]:
    """The option groups among callbacks, such as ``KeepBest()``, and the callbacks themselves.

    A function becomes a ShowProgress. It is a ConfigError if a member is none of these.
    """
    kinds = tuple(RECORDED.values())
    if isinstance(callbacks, (Callback, *kinds)) or not isinstance(callbacks, Iterable):
        name = type(callbacks).__name__
        one = f"; give [{name}(...)]" if isinstance(callbacks, (Callback, *kinds)) else ""
        raise ConfigError(f"callbacks must be a list of fgn.Callback, not {name}{one}")
    options, found = list[object](), list[Callback]()
    for i, callback in enumerate(callbacks):
        if isinstance(callback, type) and issubclass(callback, (Callback, *kinds)):
            name = callback.__name__
            raise ConfigError(f"callbacks[{i}] is the class {name}; give an instance, {name}(...)")
        if isinstance(callback, kinds):
            options.append(callback)
            continue
        if not isinstance(callback, Callback) and not callable(callback):
            kind = type(callback).__name__
            raise ConfigError(f"callbacks[{i}] must be an fgn.Callback or a function, not {kind}")
        if isinstance(callback, Callback):
            never = [name for name in dir(callback) if name.startswith("on_") and name not in HOOKS]
            if never:
                log.warning(
                    "callbacks[%d]: training never calls %s; the hooks of a callback are %s",
                    *(i, f"{type(callback).__name__}.{never[0]}", ", ".join(HOOKS)),
                )
        found.append(callback if isinstance(callback, Callback) else ShowProgress(callback))
        whole(f"callbacks[{i}].every", found[-1].every, 1)
    return options, found


def meet(executor: str) -> World:
    """The ranks of this run; a ConfigError if each of them would train all clients."""
    if executor == "auto":
        return ranks.world()
    if asked_for() > 1:
        raise ConfigError(
            f"executor {executor!r} runs in one process, but torchrun started {asked_for()}; "
            "use executor='auto', or leave torchrun out"
        )
    return World()


def usable_device(settings: Settings) -> torch.device:
    """Where a run is trained; a ConfigError unless device and precision can be used here."""
    name, gpu = settings.device, torch.cuda.is_available()
    try:
        device = torch.device(("cuda" if gpu else "cpu") if name == "auto" else name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = shortened(str(error).splitlines()[0], 100)
        there = "'cpu' or 'cuda'" if gpu else "'cpu'"
        raise ConfigError(
            f"device {name!r} cannot be used here ({reason}); use {there}, or 'auto'"
        ) from error
    if settings.precision == "bf16":
        require_gpu(device)
    return device
