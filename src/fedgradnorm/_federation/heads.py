"""The heads that clients begin with, and those that several of them share."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.evaluation import predict
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.seeding import each_number
from fedgradnorm._round.server import Aggregate, coefficients
from fedgradnorm._round.settings import Heads, Settings
from fedgradnorm.models._fitting import (
    as_input,
    check_head,
    fitting_head,
    own_head,
    own_stem,
    representation,
    with_sizes,
    with_stem,
)
from fedgradnorm.models._input_rows import Fields, Inputs, call
from fedgradnorm.models._streamed import StreamedTargets, all_targets
from fedgradnorm.tasks._targets import forms, labelled
from fedgradnorm.weighting import Needs

log = logging.getLogger("fedgradnorm")

Patterns = str | Sequence[str] | None
"""What ``head_own`` may be: patterns of names of a head's parameters."""
SHOWN = 10  # clients that are named in the log; of more, their number


def random_because(client: Client, settings: Settings, in_common: bool = False) -> str:
    """Why a head that we make begins at random; empty where it begins at the client's targets.

    With ``auto`` that is whatever keeps its first answer from being known, told, or of use. A head
    that is ``in_common`` with others is made by the server in a deployment, which knows no targets;
    a bias that the client keeps for itself (``head_own``) is made by the client, which does.
    """
    if settings.head_init != "auto":
        return "" if settings.head_init == "targets" else "head_init = 'random'"
    if client.privacy is not None:
        return "privacy: the account has no mean of targets"
    if in_common and not own_names(["bias"], settings.head_own):
        return "shared heads: a server knows no targets"
    if not client.task.knows_baseline:
        return "a custom loss or kind"
    if isinstance(client.train[1], StreamedTargets):
        return "targets that are read with their examples"
    return ""


def log_starts(clients: Iterable[Client], settings: Settings, common: Container[str] = ()) -> None:
    """Say in one line how heads begin; ``common`` names the clients that share theirs."""
    found: dict[str, list[str]] = {}
    for client in clients:
        why = random_because(client, settings, client.name in common)
        how = f"at random ({why})" if why else "at the mean or the class shares of the targets"
        found.setdefault("as given" if client.head is not None else how, []).append(client.name)
    parts = [
        f"{how}: {', '.join(names) if len(names) <= SHOWN else f'{len(names)} clients'}"
        for how, names in found.items()
    ]
    log.info("heads begin %s", "; ".join(parts))


def baseline_of(client: Client) -> Tensor:
    """The outputs with the least loss that are the same for all rows of a client.

    For squared error this is the mean of the training targets. For cross-entropy it is the
    logarithm of the classes' shares, for binary cross-entropy the log odds of a 1; every class
    counts once more than it was seen, so that a class nobody saw has a share too.
    """
    return client.task.baseline(all_targets(client.train[1]))


@torch.no_grad()
def start_at_targets(biases: Tensor, clients: Sequence[Client]) -> None:
    """Let the biases of heads, a row each, be the clients' baselines.

    Outputs without one, such as a number that no row has, stay as they were drawn.
    """
    for bias, client in zip(biases, clients, strict=True):
        answer = baseline_of(client).reshape(-1).to(bias)
        bias.copy_(torch.where(answer.isfinite(), answer, bias))


def probe_of(network: nn.Module, client: Client) -> Inputs:
    """The client's first rows as the shared network gets them."""
    like, rows = next(network.parameters()).detach().cpu(), client.train[0][:2]
    x = as_input(rows, network, "cpu", client.stem)
    stem = own_stem(client.stem, client.name, like)
    if stem is None:
        return x
    with torch.no_grad():
        between: Any = call(stem.eval(), x)
    return Fields(between) if isinstance(between, Mapping) else between


@contextmanager
def head_chance(name: str, seed: int) -> Iterator[None]:
    """Chance that depends on seed and name alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(each_number([name], seed, "head")[0] % 2**63)
        yield


def first_head(
    network: nn.Module, client: Client, settings: Settings, in_common: bool = False
) -> nn.Module:
    """The head that a client begins a training with, its own or one ``in_common`` with others."""
    at_targets = not random_because(client, settings, in_common)
    return make_head(network, client, settings.seed, at_targets)


def make_head(network: nn.Module, client: Client, seed: int, at_targets: bool = False) -> nn.Module:
    """The client's own head, or a linear one whose weights depend on seed and name alone.

    A ConfigError where it does not fit, or where the client's own loss cannot be used.
    """
    like = next(network.parameters()).detach()
    front = with_stem(own_stem(client.stem, client.name, like), network)
    x = as_input(client.train[0][:2], network, "cpu", client.stem)
    row, task = representation(front, x, client.name), client.task
    if client.head is not None:
        head = own_head(client.head, client.name).to(dtype=like.dtype)
        with head_chance(client.name, seed):
            zeros = like.new_zeros(2, *row)
            head = with_sizes(head, lambda own: own(zeros), client.name, "its head")
    else:
        with head_chance(client.name, seed):
            head = fitting_head(row, task.outputs, task.shape, client.name).to(dtype=like.dtype)
        if at_targets:
            assert isinstance(head.bias, Tensor)
            start_at_targets(head.bias[None], [client])
    check_head(head, row, forms(task.outputs, task.shape), client.name, like)
    if task.has_own_loss:
        count = 3 if task.outputs == 2 else 2  # so that rows and outputs cannot be mistaken
        x, y = client.learns_from()
        if isinstance(y, Tensor):
            x, y = x[there := labelled(y)], y[there]
        x, y = x[:count], y[:count]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            output = predict(front, head, as_input(x, front, "cpu", client.stem))
            try:
                task.check_loss(output, y.to(output.dtype) if y.is_floating_point() else y)
            except ConfigError as error:
                where = f"client {client.name!r}, task {client.task_name!r}"
                raise ConfigError(f"{where}: {error}") from error
    return head


class HeadsOnDemand:
    """The heads that clients begin with, each made when it is asked for.

    ``common`` names the clients that share theirs with others.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Iterable[Client],
        settings: Settings,
        common: Container[str] = (),
    ) -> None:
        self._network, self._settings, self._common = network, settings, common
        self._clients = {client.name: client for client in clients}
        self._dtype = next(network.parameters()).dtype
        self._chance = torch.Generator()
        self._made: dict[str, nn.Module] = {}

    def __getitem__(self, name: str) -> nn.Module:
        if name in self._made:
            return self._made[name]
        client, in_common = self._clients[name], name in self._common
        return first_head(self._network, client, self._settings, in_common)

    def make_all(self, shared: SharedHeads | None = None) -> None:
        """Make every head now, so that clients that do not fit are named; groups share theirs."""
        made = {name: self[name] for name in self._clients}
        self._made = made if shared is None else shared.begin(made)

    @cached_property
    def features(self) -> int:
        """How many numbers a row has behind the network, found out on the first client's."""
        head = self[next(iter(self._clients))]
        assert isinstance(head, nn.Linear)
        return head.in_features

    def shape(self, client: Client) -> tuple[int, int] | None:
        """Outputs and features of a client's linear head, where it can be drawn as a row."""
        if client.head is not None or client.task.shape or client.stem is not None:
            return None
        return client.task.outputs, self.features

    def rows(self, clients: Sequence[Client]) -> Tensor | None:
        """Weights and biases of clients' linear heads, which have one shape, a row each.

        They are those of ``make_head``, without modules: drawn as ``nn.Linear.reset_parameters``
        draws them. There the bound of weights is that of biases, 1 / sqrt(features), but for
        rounding in float64. So one call draws both, the weights first. None for other heads.
        """
        if self._made or any(self.shape(client) is None for client in clients):
            return None
        chance, features = self._chance, self.features
        outputs, bound = clients[0].task.outputs, 1 / math.sqrt(features)
        seeds = each_number([client.name for client in clients], self._settings.seed, "head")
        both = torch.empty(len(clients), outputs * features + outputs)
        for own, seed in zip(both.unbind(), seeds, strict=True):
            chance.manual_seed(seed % 2**63)
            own.uniform_(-bound, bound, generator=chance)
        both = both.to(self._dtype)
        here = [k for k, one in enumerate(clients) if not random_because(one, self._settings)]
        biases = both[here, outputs * features :]
        start_at_targets(biases, [clients[k] for k in here])
        both[here, outputs * features :] = biases
        return both


def head_groups(tasks: Mapping[str, str], how: Heads) -> list[list[str]]:
    """The names of clients that share a head; ``tasks`` is the shared task of every client.

    With ``all`` there is one group, in the order of the clients. With ``task`` there is one for
    each task that has several clients, in the order of their names: so the order of the clients,
    which says nothing about them, decides nothing. Who is in no group keeps its own.
    """
    if how == "own" or not tasks:
        return []
    if how == "all":
        return [list(tasks)]
    by_task: dict[str, list[str]] = {}
    for name, task in tasks.items():
        by_task.setdefault(task, []).append(name)
    return [sorted(names) for names in by_task.values() if len(names) > 1]


class SharedHeads:
    """Who shares a head with whom (``groups``), and how a round's heads become one again.

    ``own`` are patterns of the parameters that each client of a group keeps for itself
    (``head_own``); only the others are averaged. ``sizes`` is how many numbers of its head each
    client of a group sends, and receives.
    """

    def __init__(
        self, tasks: Mapping[str, str], how: Heads, device: torch.device, own: Patterns = None
    ) -> None:
        self.how, self._patterns, self._tasks = how, own, tasks
        self.groups = head_groups(tasks, how)
        self.names = frozenset(name for names in self.groups for name in names)
        self.sizes: dict[str, int] = {}
        places = {name: row for row, name in enumerate(tasks)}
        self._rows = [torch.tensor([places[n] for n in ns], device=device) for ns in self.groups]
        self._columns: list[Tensor | None] = [None] * len(self.groups)  # averaged ones; None: all

    def begin(self, heads: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """The heads before the first round: everybody's in a group is that of its first client.

        What clients keep for themselves begins as in their own heads. A ConfigError unless all
        heads of a group have parameters of the same names and shapes.
        """
        started = dict(heads)
        for number, names in enumerate(self.groups):
            first, shapes = names[0], {name: _shapes(heads[name]) for name in names}
            other = next((name for name in names if shapes[name] != shapes[first]), None)
            if other is not None:
                of = f" of task {self._tasks[other]!r}" if self.how == "task" else ""
                way = "name their tasks apart, or " if self.how == "task" else ""
                raise ConfigError(
                    f"heads={self.how!r} needs heads of one shape, but those of clients {first!r} "
                    f"and {other!r}{of} differ ({shapes[first]}; {shapes[other]}); {way}keep heads "
                    "personal (heads='own', or another method than fedavg)"
                )
            own = own_parameters(heads[first], self._patterns, first)
            started |= {name: combined(heads[first], heads[name], own) for name in names}
            columns = shared_columns(heads[first], own)
            self.sizes |= dict.fromkeys(names, len(columns))
            if own:
                self._columns[number] = columns.to(self._rows[number].device)
        return started

    def averaged(
        self,
        heads: Callable[[Sequence[str]], Tensor],
        reports: Reports,
        weights: Tensor,
        by: Aggregate,
    ) -> Iterator[tuple[list[str], Tensor]]:
        """The names of each group and its heads after a round, as rows.

        ``heads`` gives the heads of some clients as rows. Each client counts as in the server's own
        step. Clients that did not participate get the mean too: the head is theirs as much as the
        others'. A group without participants is left as it is, and so is everybody's own part.
        """
        signals = reports.signals(Needs.NOTHING).among(len(weights))
        share = coefficients(weights, signals, by)
        even = coefficients(torch.ones_like(weights), signals, by)
        for names, row, columns in zip(self.groups, self._rows, self._columns, strict=True):
            found, parts = heads(names), self._parts(share[row], even[row])
            if columns is None:
                yield names, average_heads(found, parts)
            else:  # a sum over fewer columns may round differently, and a server has no others
                mean = average_heads(found.index_select(1, columns), parts)
                yield names, found.index_copy(1, columns, mean)

    def _parts(self, share: Tensor, even: Tensor) -> Tensor:
        """Shares of a group that sum to 1, or all 0 where nobody participated.

        The shares of a task may sum to 0 (Krum chose a client of another one), or to little next to
        their terms (weights may be negative). Its clients count evenly then.
        """
        if self.how == "all":
            return share / share.sum()
        usable = (share >= 0).all() & (share.sum() > 0)
        share = torch.where(usable, share, even)
        total = share.sum()
        return share / torch.where(total > 0, total, 1)


@torch.no_grad()
def average_heads(heads: Tensor, parts: Tensor | Sequence[float]) -> Tensor:
    """Heads as rows, each replaced by the mean of all, head i counting ``parts[i]`` (FedAvg).

    The mean is summed in float64. Where all parts are 0 nothing changes. Nothing is read back to
    the host, so that a round with it can be captured into a GPU graph.

    >>> average_heads(torch.tensor([[1.0], [3.0]]), [0.5, 0.5]).tolist()
    [[2.0], [2.0]]
    """
    parts = torch.as_tensor(parts).to(heads.device, torch.float64)
    scaled = heads.double() * parts[:, None]
    mean = scaled.sum(dim=0).to(heads.dtype)
    return torch.where(parts.any(), mean.expand_as(heads), heads)


def own_names(names: Iterable[str], patterns: Patterns) -> set[str]:
    """The parameters of a head that match the patterns of ``head_own``.

    >>> own_names(["weight", "bias"], "bias")
    {'bias'}
    """
    listed = [patterns] if isinstance(patterns, str) else patterns or []
    return {name for name in names if any(fnmatchcase(name, one) for one in listed)}


def own_parameters(head: nn.Module, patterns: Patterns, client: str) -> set[str]:
    """The parameters of a shared head that its client keeps for itself.

    A ConfigError where a pattern matches none of them, or where nothing is left to share.
    """
    named = dict(head.named_parameters())
    for one in [patterns] if isinstance(patterns, str) else patterns or []:
        if not own_names(named, one):
            raise ConfigError(
                f"head_own = {one!r} matches no parameter of the head of client {client!r} "
                f"({', '.join(named) or 'it has none'}); name one of them, or leave head_own out"
            )
    own = own_names(named, patterns)
    if own and all(name in own for name, p in named.items() if p.requires_grad):
        raise ConfigError(
            f"head_own = {patterns!r} leaves nothing to share of the head of client {client!r} "
            f"({', '.join(named)}); name fewer parameters, or keep heads personal (heads='own')"
        )
    return own


def shared_columns(head: nn.Module, own: Collection[str]) -> Tensor:
    """The places, in a row of a head's trained parameters, of those that are not ``own``."""
    trained = [(name, p.numel()) for name, p in head.named_parameters() if p.requires_grad]
    parts = [torch.full((count,), name not in own) for name, count in trained]
    return torch.cat([torch.zeros(0, dtype=torch.bool), *parts]).nonzero()[:, 0]


@torch.no_grad()
def combined(shared: nn.Module, personal: nn.Module, own: Collection[str]) -> nn.Module:
    """A copy of the ``shared`` head with the ``own`` parameters of the ``personal`` one."""
    head, source = copy.deepcopy(shared), dict(personal.named_parameters())
    for name, parameter in head.named_parameters():
        if name in own:
            parameter.copy_(source[name])
    return head


def _shapes(head: nn.Module) -> str:
    named = (f"{name} {list(p.shape)}" for name, p in head.named_parameters())
    return ", ".join(named) or "no parameters"
