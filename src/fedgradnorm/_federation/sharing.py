"""Who shares a network with whom, and what is checked of clients together."""

from __future__ import annotations

import copy
import itertools
import json
import logging
from collections import Counter
from collections.abc import Container, Sequence

import torch
from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._federation.alone import Alone
from fedgradnorm._federation.federation import Federation
from fedgradnorm._federation.head_start import random_because
from fedgradnorm._round.participation import check_listed
from fedgradnorm._round.private.client_sums import client_sums
from fedgradnorm._round.private.private_plan import check_private, told_to
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import Weighting

log = logging.getLogger("fedgradnorm")


def check_clients(clients: Sequence[Client], settings: Settings) -> None:
    """What concerns all clients together: there are some, with names of their own."""
    if not clients:
        raise DataError("no clients: give at least one fgn.Client")
    _check_names([client.name for client in clients])
    owners = [owner for owner, _ in itertools.groupby(client.owner for client in clients)]
    _check_names(owners)
    if settings.first_loss == "log_classes":
        for client in clients:
            if client.task.classes is None:
                raise ConfigError(
                    f"first_loss='log_classes' needs classification, but client {client.name!r} "
                    f"does {client.task.kind}; use 'dataset' or 'first_round'"
                )
    if settings.keeps_best and all(client.validation is None for client in clients):
        raise ConfigError(
            f"keep={settings.keep!r} needs validation rows, and no client has any; give clients "
            "validation=(x, y), or the data source a validation_share, or use keep='last'"
        )
    check_listed(settings.participation, list(dict.fromkeys(owners)))
    if settings.share != "none":
        _check_categories(clients)


def _check_names(names: Sequence[str]) -> None:
    """A DataError where a name comes twice."""
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise DataError(f"two clients are named {twice!r}; every client needs a name of its own")


def _check_categories(clients: Sequence[Client]) -> None:
    """A ConfigError where a column has other categories at another client: they share a network."""
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    for client in clients:
        found = {} if client.encoding is None else client.encoding.categories()
        for column, values in found.items():
            other, known = first.setdefault(column, (client.name, values))
            if values != known:
                every = json.dumps(list(dict.fromkeys((*known, *values))), ensure_ascii=False)
                raise ConfigError(
                    f"column {column!r} has other categories at client {client.name!r} than at "
                    f"client {other!r}, and they share a network; list them for all clients: "
                    f"categories = {{{column} = {every}}}"
                )


def make_federation(
    network: nn.Module,
    clients: Sequence[Client],
    weighting: Weighting,
    settings: Settings,
    device: torch.device,
) -> Federation | Alone:
    """All clients around one network, or with ``share="none"`` each with its own."""
    check_clients(clients, settings)
    check_private(clients, settings, told_to(weighting))
    if settings.share == "none":
        client_sums(clients, weighting, settings)  # refused: there is no sum to hide a client in
        return Alone(network, clients, settings, device)
    personal = Alone(network, clients, settings.alone(), device) if settings.ditto else None
    return Federation(network, clients, copy.deepcopy(weighting), settings, device, personal)


def warn_of_order(clients: Sequence[Client]) -> None:
    """Name clients with the same columns in different orders: the network goes by their places."""
    first: dict[tuple[str, ...], Client] = {}
    for client in clients:
        if client.columns is None:
            continue
        other = first.setdefault(tuple(sorted(client.columns)), client)
        if other.columns != client.columns:
            log.warning(
                "client %r has the columns of client %r in another order, but they share a "
                "network; give both the same inputs=[...]", client.name, other.name,
            )  # fmt: skip


FAR = 100.0
"""How far from 1 the size of targets is pointed out."""


def warn_of_scale(
    clients: Sequence[Client], settings: Settings, common: Container[str] = ()
) -> None:
    """Name the clients whose targets are far larger or smaller than 1, with what helps.

    The size is the root of the mean square. Such a loss is 10,000 times louder or quieter than that
    of other tasks, heads begin far from any answer, and one learning rate does not suit both.
    """
    sizes, far = {}, False
    for client in clients:
        if client.task.has_real_targets:
            size = client.target_size
            if size > FAR or 0 < size < 1 / FAR:
                sizes[client.name] = size
                ours = client.head is None and client.privacy is None
                drawn = random_because(client, settings, client.name in common)
                far = far or (ours and bool(drawn))
    if sizes:
        first = ", ".join(f"{name} {size:.3g}" for name, size in list(sizes.items())[:5])
        log.warning(
            "targets of %d client%s are far from the size of 1 (%s%s); standardize = true in "
            "[data], or client_from_arrays(..., standardize=True), learns with mean 0 and "
            "deviation 1 and predicts in the old units%s",
            len(sizes), "s" * (len(sizes) > 1), first, ", ..." * (len(sizes) > 5),
            "; head_start='targets' begins at the mean" if far else "",
        )  # fmt: skip
