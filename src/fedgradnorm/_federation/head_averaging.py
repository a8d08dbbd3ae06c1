"""Heads that clients have in common: those of a task or everybody's, averaged in every round."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import Aggregate, coefficients
from fedgradnorm._round.settings import Heads
from fedgradnorm.weighting import Needs

Patterns = str | Sequence[str] | None
"""What ``head_own`` may be: patterns of names of a head's parameters."""


class Member(Protocol):
    """All that must be known of a client to say with whom it shares a head."""

    @property
    def name(self) -> str:
        """The client's name."""

    @property
    def shared_task(self) -> str:
        """The task that it shares with others."""


class SharedHeads:
    """Who shares a head with whom, and how a round's heads become one again.

    ``groups`` are the names of clients that share a head. Who stands in none keeps its own. With
    ``all`` there is one group, in the order of the clients. With ``task`` there is one for each
    task that has several clients, in the order of their names: so the order of the clients, which
    says nothing about them, decides nothing.

    ``own`` are patterns of the parameters that each client of a group keeps for itself
    (``head_own``); only the others are averaged.
    """

    def __init__(
        self,
        clients: Sequence[Member],
        how: Heads,
        device: torch.device,
        own: Patterns = None,
    ) -> None:
        self.how, self._patterns, self._device = how, own, device
        self.groups = _groups(clients, how)
        places = {client.name: row for row, client in enumerate(clients)}
        self._rows = [
            torch.tensor([places[name] for name in names], device=device) for names in self.groups
        ]
        self._task = {client.name: client.shared_task for client in clients}
        self.names = frozenset(name for names in self.groups for name in names)
        self._columns: list[Tensor | None] = [None] * len(self.groups)  # averaged ones; None: all

    def __bool__(self) -> bool:
        return bool(self.groups)

    def begin(self, heads: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """The heads before the first round: everybody's in a group is that of its first client.

        What clients keep for themselves begins as in their own heads.
        """
        started = dict(heads)
        for number, names in enumerate(self.groups):
            first = heads[names[0]]
            self._check_alike({name: heads[name] for name in names})
            own = own_parameters(first, self._patterns, names[0])
            started |= {name: combined(first, heads[name], own) for name in names}
            if own:
                self._columns[number] = shared_columns(first, own).to(self._device)
        return started

    def sizes(self, heads: Mapping[str, nn.Module]) -> dict[str, int]:
        """How many numbers of its head each client of a group sends, and receives."""
        found = dict[str, int]()
        for names in self.groups:
            own = own_parameters(heads[names[0]], self._patterns, names[0])
            found |= dict.fromkeys(names, len(shared_columns(heads[names[0]], own)))
        return found

    def averaged(
        self,
        heads: Callable[[Sequence[str]], Tensor],
        reports: Reports,
        weights: Tensor,
        by: Aggregate,
    ) -> Iterator[tuple[list[str], Tensor]]:
        """The names of each group and its heads after a round, as rows.

        ``heads`` gives the heads of some clients as rows. Each client counts as in the server's own
        step. Clients that did not take part get the mean too: the head is theirs as much as the
        others'. A group of which nobody took part is left as it is, and so is everybody's own part.
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
        """Shares of a group that sum to 1, or all 0 where nobody took part.

        The shares of a task may sum to 0 (Krum chose a client of another one), or to little beside
        their terms (weights may be negative). Its clients count evenly then.
        """
        if self.how == "all":
            return share / share.sum()
        usable = (share >= 0).all() & (share.sum() > 0)
        share = torch.where(usable, share, even)
        total = share.sum()
        return share / torch.where(total > 0, total, 1)

    def _check_alike(self, heads: Mapping[str, nn.Module]) -> None:
        """A ConfigError unless all heads have parameters of the same names and shapes."""
        (first, wanted), *others = ((name, _shapes(head)) for name, head in heads.items())
        for name, shapes in others:
            if shapes != wanted:
                of = f" of task {self._task[name]!r}" if self.how == "task" else ""
                way = "name their tasks apart, or " if self.how == "task" else ""
                raise ConfigError(
                    f"heads={self.how!r} needs heads of one shape, but those of clients {first!r} "
                    f"and {name!r}{of} differ ({_text(wanted)}; {_text(shapes)}); {way}keep heads "
                    "personal (heads='own')"
                )


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


def flat_head(head: nn.Module, own: Collection[str] = ()) -> Tensor:
    """A head's parameters as a new vector, without the ``own`` ones: what of it can be averaged."""
    return torch.cat([p.detach().flatten() for n, p in head.named_parameters() if n not in own])


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
    found = [torch.zeros(0, dtype=torch.bool)]
    for name, parameter in head.named_parameters():
        if parameter.requires_grad:
            found.append(torch.full((parameter.numel(),), name not in own))
    return torch.cat(found).nonzero().flatten()


@torch.no_grad()
def combined(shared: nn.Module, personal: nn.Module, own: Collection[str]) -> nn.Module:
    """A copy of the ``shared`` head with the ``own`` parameters of the ``personal`` one."""
    head, source = copy.deepcopy(shared), dict(personal.named_parameters())
    for name, parameter in head.named_parameters():
        if name in own:
            parameter.copy_(source[name])
    return head


def _groups(clients: Sequence[Member], how: Heads) -> list[list[str]]:
    """The names of clients that share a head."""
    if how == "own":
        return []
    if how == "all":
        return [[client.name for client in clients]]
    by_task: dict[str, list[str]] = {}
    for client in clients:
        by_task.setdefault(client.shared_task, []).append(client.name)
    return [sorted(names) for names in by_task.values() if len(names) > 1]


def _shapes(head: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in head.named_parameters()}


def _text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "no parameters"
