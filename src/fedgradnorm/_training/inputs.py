"""The arguments of ``train`` other than settings: each is checked, with an error that says how."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import nn

from fedgradnorm._checks import shortened, shown, whole
from fedgradnorm._client import Client
from fedgradnorm._engines import ranks
from fedgradnorm._engines.ranks import World
from fedgradnorm._errors import ConfigError, DataError, ModelError
from fedgradnorm._launched import asked_for
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.folder import Place
from fedgradnorm._training.callbacks import Callback, ShowProgress
from fedgradnorm.models._flat import require_gpu
from fedgradnorm.weighting import Weighting


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
        raise DataError(f"clients must be a list of fgn.Client, not {_kind(clients)}")
    try:
        given = list(clients)
    except TypeError as error:  # an array of one number is an Iterable, in name
        raise DataError(f"clients must be a list of fgn.Client: {error}") from error
    for i, client in enumerate(given):
        if not isinstance(client, Client):
            way = f"; give clients[{i}].client" if hasattr(client, "client") else ""
            raise DataError(f"clients[{i}] must be an fgn.Client, not {_kind(client)}{way}")
    return [row for client in given for row in client.rows]


def checked_weighting(weighting: object) -> Weighting | None:
    """The weighting, or None where none is given; a ConfigError unless it is one."""
    if weighting is None or isinstance(weighting, Weighting):
        return weighting
    if isinstance(weighting, type) and issubclass(weighting, Weighting):
        name = weighting.__name__
        raise ConfigError(f"weighting is the class {name}; give an instance, {name}()")
    raise ConfigError(
        f"weighting must be one of this library's, such as GradNorm(), not {shown(weighting)}"
    )


def checked_folder(folder: object) -> Place | None:
    """The run's folder, if one is given; a ConfigError unless it is a path or the lock of one."""
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not str(folder) or "\0" in str(folder):
        raise ConfigError(f"folder must be the path of a folder, not {shown(folder)}")
    return folder


def checked_callbacks(callbacks: object) -> list[Callback]:
    """The callbacks as a list, with functions in ShowProgress; a ConfigError if one is neither."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks must be a list of fgn.Callback, not {_kind(callbacks)}")
    found = []
    for i, callback in enumerate(callbacks):
        if isinstance(callback, type) and issubclass(callback, Callback):
            name = callback.__name__
            raise ConfigError(f"callbacks[{i}] is the class {name}; give an instance, {name}(...)")
        if not isinstance(callback, Callback) and not callable(callback):
            raise ConfigError(
                f"callbacks[{i}] must be an fgn.Callback or a function, not {_kind(callback)}"
            )
        found.append(callback if isinstance(callback, Callback) else ShowProgress(callback))
        whole(f"callbacks[{i}].every", found[-1].every, 1)
    return found


def meet(engine: str) -> World:
    """The ranks of this run; a ConfigError if the engine would train everything on each of them."""
    if engine == "auto":
        return ranks.world()
    if asked_for() > 1:
        raise ConfigError(
            f"engine {engine!r} runs in one process, but torchrun started {asked_for()}; "
            "use executor='auto', or leave torchrun out"
        )
    return World()


def usable_device(settings: Settings) -> torch.device:
    """Where a run is trained; a ConfigError unless device and precision can be used here."""
    device = _device(settings.device)
    if settings.precision == "bf16":
        require_gpu(device)
    return device


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = shortened(str(error).splitlines()[0], 100)
        there = "'cpu' or 'cuda'" if torch.cuda.is_available() else "'cpu'"
        raise ConfigError(
            f"device {name!r} cannot be used here ({reason}); use {there}, or 'auto'"
        ) from error
    return device


def _kind(value: object) -> str:
    return type(value).__name__
