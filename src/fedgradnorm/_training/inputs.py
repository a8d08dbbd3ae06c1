"""What is given to ``train`` beside the settings: of the right kind, or refused with a way out."""

from __future__ import annotations

import os
from collections.abc import Iterable

from torch import nn

from fedgradnorm._checks import shown
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError, ModelError
from fedgradnorm._runs.folder import Place
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
            raise DataError(f"clients[{i}] must be an fgn.Client, not {_kind(client)}")
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
    """The run's folder, if one is given; a ConfigError unless it is a path or a claim on one."""
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not str(folder) or "\0" in str(folder):
        raise ConfigError(f"folder must be the path of a folder, not {shown(folder)}")
    return folder


def check_progress(progress: object) -> None:
    """A ConfigError unless progress is a bool or a function."""
    if not isinstance(progress, bool) and not callable(progress):
        raise ConfigError(f"progress must be True, False or a function, not {shown(progress)}")


def _kind(value: object) -> str:
    return type(value).__name__
