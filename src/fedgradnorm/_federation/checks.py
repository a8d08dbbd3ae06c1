"""Checks of clients together: names, columns, labels, tasks and the size of their numbers."""

from __future__ import annotations

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
from fedgradnorm._errors import ConfigError, DataError, listed
from fedgradnorm._federation.heads import head_groups, random_because
from fedgradnorm._round.participation import participants
from fedgradnorm._round.seeding import number
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._fitting import (
    as_input,
    lazy_layers,
    own_stem,
    takes_ids,
    with_sizes,
    with_stem,
)
from fedgradnorm.models._given_inputs import check_fits
from fedgradnorm.models._input_rows import call
from fedgradnorm.models._streamed import Streamed, StreamedTargets
from fedgradnorm.weighting import Weighting
from fedgradnorm.weighting._by_task import ByTask
from fedgradnorm.weighting._products import MGDA
from fedgradnorm.weighting._steady import Steady

log = logging.getLogger("fedgradnorm")

SHOWN = 10  # names that a message lists
FAR = 100.0  # how far from 1 the root of a first loss is pointed out
EXAMPLE = "fgn.classification(3, name='sorting'), in a config task_name = 'sorting'"


def check_clients(clients: Sequence[Client], settings: Settings) -> None:
    """What concerns all clients together: there are some, with names of their own."""
    if not clients:
        raise DataError("no clients: give at least one fgn.Client")
    owners = [owner for owner, _ in itertools.groupby(client.owner for client in clients)]
    for names in ([client.name for client in clients], owners):
        twice = next((name for name, times in Counter(names).items() if times > 1), None)
        if twice is not None:
            raise DataError(f"two clients are named {twice!r}; give every client a different name")
    if settings.first_loss == "log_classes":
        for client in clients:
            if client.task.classes is None:
                raise ConfigError(
                    f"first_loss='log_classes' needs classification, but client {client.name!r} "
                    f"does {client.task.kind}; use 'dataset' or 'first_round'"
                )
    if settings.judges:
        what = "keep_best" if settings.keeps_best else "early_stopping"
        judged = [client for client in clients if client.validation is not None]
        if not judged:
            raise ConfigError(
                f"{what} needs validation examples, and no client has any; give clients "
                f"validation=(x, y), or the data source a validation_share, or leave {what} out"
            )
        known = {"loss"}.union(*(client.task.metrics for client in judged))
        if settings.watch not in known:
            raise ConfigError(
                f"early_stopping watches {settings.watch!r} on validation examples, and no client "
                f"has both; watch one of: {', '.join(sorted(known))}"
            )
    if not isinstance(plan := settings.participation, (int, float)):
        for turn in range(max(1, len(plan))):
            participants(plan, 0, owners, turn)


def check_shared_tasks(clients: Sequence[Client], settings: Settings, weighting: Weighting) -> None:
    """A ConfigError where heads or weights are asked for by task, and who shares one is not known.

    Clients that average their heads must have the same labels. MGDA by task is FSMGDA, whose tasks
    may well have one client each; so may those whose heads stay as they begin (FedBABU).
    """
    named = {c.name: c for c in clients if c.label_names and not c.task.has_real_targets}
    for group in head_groups({c.name: c.shared_task for c in clients}, settings.heads):
        labelled = [named[name] for name in group if name in named]
        for other in labelled[1:]:
            if (first := labelled[0]).labels != other.labels:
                every = list(dict.fromkeys((*(first.labels or ()), *(other.labels or ()))))
                ours, theirs = (
                    listed([str(label) for label in c.labels or ()], SHOWN) for c in (first, other)
                )
                raise ConfigError(
                    f"heads={settings.heads!r} averages the heads of clients {first.name!r} "
                    f"(labels {ours}) and {other.name!r} (labels {theirs}), whose outputs mean "
                    "different classes; give both the same list, such as "
                    f"fgn.classification(labels={every[:SHOWN]!r}), or name their tasks apart, or "
                    "keep heads personal (heads='own')"
                )
    names = [
        f"{name}='task'" for name in ("heads", "weight_per") if getattr(settings, name) == "task"
    ]
    if not names or len(clients) < 2:
        return
    asked, groups = " and ".join(names), dict[str, list[Client]]()
    for client in clients:
        groups.setdefault(client.shared_task, []).append(client)
    if all(len(some) == 1 for some in groups.values()):
        by_task = settings.heads == "task" and not settings.fixes_heads
        if not by_task and (settings.weight_per != "task" or isinstance(weighting, MGDA)):
            return
        raise ConfigError(
            f"{asked} changes nothing here: no two of the {len(clients)} clients share a task; "
            f"give the tasks that are one the same name, such as {EXAMPLE}, or leave the setting "
            "out"
        )
    guessed = [
        some
        for some in groups.values()
        if some[0].of is None and some[0].task.name is None and some[0].label_names is None
    ]
    shared = [some for some in guessed if len(some) > 1]
    if shared and len(guessed) > 1:
        one, other = shared[0][:2]
        raise ConfigError(
            f"{asked}: clients {one.name!r} and {other.name!r} have {one.task.kind} tasks of "
            f"{one.task.words()} without names, which may be one task or two, as clients have "
            f"several kinds of tasks; name them, such as {EXAMPLE}"
        )
    for some in shared:
        log.warning(
            "%s: the tasks of %d clients (%s) have no names and count as the same task, because "
            "all are %s; give them a name, such as %s, or different names if they differ",
            asked, len(some), listed([c.name for c in some], SHOWN), some[0].shared_task, EXAMPLE,
        )  # fmt: skip


def aligned(
    clients: Sequence[Client], settings: Settings, order: Sequence[str] | None = None
) -> list[Client]:
    """The clients with their named columns in one order: that of the first client, or ``order``.

    A network knows its inputs by their places. Clients without names, or with a stem, stay as they
    are. A DataError where a client that shares the network has other columns, a ConfigError where
    one of them has other categories.
    """
    if settings.share == "none":
        return list(clients)
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    for client in clients:
        categories = {} if client.encoding is None else client.encoding.categories()
        for column, values in categories.items():
            other, known = first.setdefault(column, (client.name, values))
            if values != known:
                every = json.dumps(list(dict.fromkeys((*known, *values))), ensure_ascii=False)
                raise ConfigError(
                    f"column {column!r} has other categories at client {client.name!r} than at "
                    f"client {other!r}, and they share a network; list them for all clients: "
                    f"categories = {{{column} = {every}}}"
                )
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
            lacks = [column for column in order if column not in own]
            more = [column for column in own if column not in order]
            parts = [f"it lacks {', '.join(map(repr, lacks[:SHOWN]))}"] if lacks else []
            parts += [f"{whose} lacks {', '.join(map(repr, more[:SHOWN]))}"] if more else []
            raise DataError(
                f"client {client.name!r} has other columns than {whose}, and they share a network: "
                f"{'; '.join(parts)}; choose or rename columns so that all clients have the same, "
                "or give the client a stem"
            )
        found.append(in_column_order(client, order, moved))
    renewed = [c.name for c, given in zip(found, clients, strict=True) if c is not given]
    if renewed:
        log.info(
            "columns of %s are reordered by name, to the order of %s", listed(renewed, SHOWN), whose
        )
    return found


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
            network, lambda own: call(with_stem(stem, own), x), client.name, "the shared network"
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


def warn_of_scale(
    clients: Sequence[Client],
    settings: Settings,
    common: Container[str] = (),
    weighting: Weighting | None = None,
) -> None:
    """Name the clients whose first loss is far larger or smaller than 1, with what helps.

    Such a loss is 10,000 times that of other tasks, or less than a 10,000th, and one learning rate
    does not suit both. The first loss is ``loss_scale`` times the mean square of the targets, or of
    their distance from the mean where the head begins there. In the second case a small one does
    not matter with a ``weighting`` in which a factor on a loss cancels. A large one does: the head
    still has to grow to it in steps of the learning rate.
    """
    rule = weighting.inner if isinstance(weighting, ByTask) else weighting
    cancels = isinstance(rule, Steady) or getattr(rule, "rule", None) == "direct"
    sizes, far = {}, False
    for client in clients:
        if not client.task.has_real_targets:
            continue
        drawn = client.head is not None or random_because(client, settings, client.name in common)
        size = client.target_size if drawn else client.target_spread
        felt = size * math.sqrt(client.task.loss_scale)
        if cancels and not drawn:
            felt = size if size > FAR else 1.0
        if felt > FAR or 0 < felt < 1 / FAR:
            sizes[client.name] = size
            far = far or (client.head is None and client.privacy is None and bool(drawn))
    if sizes:
        first = ", ".join(f"{name} {size:.3g}" for name, size in list(sizes.items())[:5])
        log.warning(
            "targets of %d client%s are far from the size of 1 (%s%s); to train on standardized "
            "targets and still predict in their units, set standardize = true in [data], or use "
            "client_from_arrays(..., standardize=True)%s",
            len(sizes), "s" * (len(sizes) > 1), first, ", ..." * (len(sizes) > 5),
            "; head_init='targets' begins at the mean" if far else "",
        )  # fmt: skip
