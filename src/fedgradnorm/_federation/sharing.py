"""Who shares a network with whom, and what is checked of clients together."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import nn

from fedgradnorm._client import SPLITS, Client, in_column_order
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._federation.alone import Alone
from fedgradnorm._federation.federation import Federation
from fedgradnorm._federation.head_averaging import SharedHeads
from fedgradnorm._federation.head_start import random_because
from fedgradnorm._round.participation import check_listed
from fedgradnorm._round.private.client_sums import client_sums
from fedgradnorm._round.private.private_plan import check_private, told_to
from fedgradnorm._round.seeding import number
from fedgradnorm._round.settings import Heads, Settings
from fedgradnorm.models._fitting import as_input, lazy_layers, takes_ids, with_sizes
from fedgradnorm.models._given_inputs import check_fits
from fedgradnorm.models._input_rows import call
from fedgradnorm.models._stem import in_front, own_stem
from fedgradnorm.models._streamed.rows import Streamed, StreamedTargets
from fedgradnorm.weighting import MGDA, ByTask, Steady, Weighting

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
        check_shared_labels(clients, settings.heads)


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


def check_shared_labels(clients: Sequence[Client], how: Heads) -> None:
    """A ConfigError where clients average their heads, and an output has another label at each."""
    named = {c.name: c for c in clients if c.label_names and not c.task.has_real_targets}
    for group in SharedHeads(clients, how, torch.device("cpu")).groups:
        some = [named[name] for name in group if name in named]
        for other in some[1:]:
            if other.labels != (first := some[0]).labels:
                every = list(dict.fromkeys((*(first.labels or ()), *(other.labels or ()))))
                raise ConfigError(
                    f"heads={how!r} averages the heads of clients {first.name!r} (labels "
                    f"{_labels(first)}) and {other.name!r} (labels {_labels(other)}), whose "
                    "outputs mean different classes; give both the same list, such as "
                    f"fgn.classification(labels={every[:SHOWN]!r}), or name their tasks apart, or "
                    "keep heads personal (heads='own')"
                )


def _labels(client: Client) -> str:
    names = client.labels or ()
    return ", ".join(map(str, names[:SHOWN])) + ", ..." * (len(names) > SHOWN)


def check_shared_tasks(clients: Sequence[Client], settings: Settings, weighting: Weighting) -> None:
    """A ConfigError where something is asked for by task, and who shares one is not known.

    MGDA by task is FSMGDA, whose tasks may well have one client each.
    """
    asked = [f"{name}='task'" for name in ("heads", "key") if getattr(settings, name) == "task"]
    if not asked or len(clients) < 2:
        return
    groups: dict[str, list[Client]] = {}
    for client in clients:
        groups.setdefault(client.shared_task, []).append(client)
    guessed = {
        task: some
        for task, some in groups.items()
        if some[0].of is None and some[0].task.name is None and some[0].label_names is None
    }
    example = "fgn.classification(3, name='sorting'), in a config task_name = 'sorting'"
    if all(len(some) == 1 for some in groups.values()):
        if settings.heads != "task" and isinstance(weighting, MGDA):
            return
        raise ConfigError(
            f"{' and '.join(asked)} changes nothing here: no two of the {len(clients)} clients "
            f"share a task; give the tasks that are one the same name, such as {example}, or leave "
            "the setting out"
        )
    shared = [some for some in guessed.values() if len(some) > 1]
    if shared and len(guessed) > 1:
        one, other = shared[0][:2]
        raise ConfigError(
            f"{' and '.join(asked)}: clients {one.name!r} and {other.name!r} have {one.task.kind} "
            f"tasks of {one.task.words()} without names, which may be one task or two, as clients "
            f"have several kinds of tasks; name them, such as {example}"
        )
    for some in shared:
        log.warning(
            "%s: the tasks of %d clients (%s%s) have no names and are taken for one, because all "
            "are %s; give them a name, such as %s, or different names if they differ",
            " and ".join(asked), len(some), ", ".join(client.name for client in some[:SHOWN]),
            ", ..." * (len(some) > SHOWN), some[0].shared_task, example,
        )  # fmt: skip


def aligned(
    clients: Sequence[Client], settings: Settings, order: Sequence[str] | None = None
) -> list[Client]:
    """The clients with their named columns in one order: that of the first client, or ``order``.

    A network knows its inputs by their places. Clients without names, or with a stem, stay as they
    are. A DataError where a client that shares the network has other columns.
    """
    if settings.share == "none":
        return list(clients)
    _check_categories(clients)
    whose, moved = "the run it starts from", dict[int, tuple[Any, Any]]()
    found = list[Client]()
    for client in clients:
        own = client.columns
        if own is None or client.stem is not None:
            found.append(client)
            continue
        if order is None:
            order, whose = own, f"client {client.name!r}"
        if own != tuple(order) and sorted(own) != sorted(order):
            raise DataError(_other_columns(client.name, own, whose, order))
        found.append(in_column_order(client, order, moved))
    renewed = [c.name for c, given in zip(found, clients, strict=True) if c is not given]
    if renewed:
        log.info(
            "columns of %s are put in the order of %s, by name",
            ", ".join(renewed[:SHOWN]) + ", ..." * (len(renewed) > SHOWN), whose,
        )  # fmt: skip
    return found


def _other_columns(name: str, own: Sequence[str], whose: str, order: Sequence[str]) -> str:
    """Which columns a client has that others do not, and the other way round."""
    lacks = [column for column in order if column not in own]
    more = [column for column in own if column not in order]
    parts = [f"it lacks {', '.join(map(repr, lacks[:SHOWN]))}"] if lacks else []
    parts += [f"{whose} lacks {', '.join(map(repr, more[:SHOWN]))}"] if more else []
    return (
        f"client {name!r} has other columns than {whose}, and they share a network: "
        f"{'; '.join(parts)}; choose or rename columns so that all clients have the same, or give "
        "the client a stem"
    )


SHOWN = 10
"""Names that a message lists."""


def sized(network: nn.Module, clients: Sequence[Client], seed: int) -> nn.Module:
    """The network; where it has lazy layers, a copy with the sizes that the first client gives.

    New parameters depend on the seed alone.
    """
    if not clients or not lazy_layers(network):
        return network
    client, like = clients[0], torch.empty(0, dtype=next(network.parameters()).dtype)
    x = as_input(client.train[0][:2], network, "cpu", client.stem)
    stem = own_stem(client.stem, client.name, like)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(seed, "network") % 2**63)
        return with_sizes(
            network, lambda own: call(in_front(stem, own), x), client.name, "the shared network"
        )


def check_numbers(clients: Sequence[Client], network: nn.Module) -> None:
    """A DataError where the network's kind of numbers cannot hold a client's values."""
    if (like := next(network.parameters(), None)) is None:
        return
    seen, looked_up = set[int](), takes_ids(network)  # several clients may hold one tensor
    for client in clients:
        stem = client.stem if isinstance(client.stem, nn.Module) else None  # others are refused
        ids = looked_up if stem is None else takes_ids(stem)
        for split in SPLITS:
            for name, part in zip("xy", getattr(client, split) or (), strict=False):
                streams = isinstance(part, (Streamed, StreamedTargets))
                if streams or id(part) in seen or (name == "y" and not part.is_floating_point()):
                    continue
                seen.add(id(part))
                where = f"client {client.name!r}, {split} data"
                columns = client.columns if name == "x" else None
                check_fits(where, part, like.dtype, name=name, columns=columns, ids=ids)


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
    check_numbers(clients, network)
    if settings.share == "none":
        client_sums(clients, weighting, settings)  # refused: there is no sum to hide a client in
        return Alone(network, clients, settings, device)
    check_shared_tasks(clients, settings, weighting)
    personal = Alone(network, clients, settings.alone(), device) if settings.ditto else None
    return Federation(network, clients, copy.deepcopy(weighting), settings, device, personal)


FAR = 100.0
"""How far from 1 the root of a first loss is pointed out."""


def warn_of_scale(
    clients: Sequence[Client],
    settings: Settings,
    common: Container[str] = (),
    weighting: Weighting | None = None,
) -> None:
    """Name the clients whose first loss is far larger or smaller than 1, with what helps.

    Such a loss is 10,000 times that of other tasks, or less than a 10,000th, and one learning rate
    does not suit both. The first loss is ``loss_scale`` times the mean square of the targets, or of
    their distance from the mean where the head begins there. In the second case it does not matter
    with a ``weighting`` in which a factor on a loss cancels.
    """
    rule = weighting.inner if isinstance(weighting, ByTask) else weighting
    cancels = isinstance(rule, Steady) or getattr(rule, "rule", None) == "direct"
    sizes, far = {}, False
    for client in clients:
        if not client.task.has_real_targets:
            continue
        drawn = client.head is not None or random_because(client, settings, client.name in common)
        if cancels and not drawn:
            continue
        size = client.target_size if drawn else client.target_spread
        felt = size * math.sqrt(client.task.loss_scale)
        if felt > FAR or 0 < felt < 1 / FAR:
            sizes[client.name] = size
            far = far or (client.head is None and client.privacy is None and bool(drawn))
    if sizes:
        first = ", ".join(f"{name} {size:.3g}" for name, size in list(sizes.items())[:5])
        log.warning(
            "targets of %d client%s are far from the size of 1 (%s%s); standardize = true in "
            "[data], or client_from_arrays(..., standardize=True), learns with mean 0 and "
            "deviation 1 and predicts in the old units%s",
            len(sizes), "s" * (len(sizes) > 1), first, ", ..." * (len(sizes) > 5),
            "; head_start='targets' begins at the mean" if far else "",
        )  # fmt: skip
