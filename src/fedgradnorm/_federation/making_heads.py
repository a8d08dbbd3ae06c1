"""The head that a client begins with: its own, or the plainest that fits network and task."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._federation.head_start import random_because, start_at_targets
from fedgradnorm._round.evaluation import predict
from fedgradnorm._round.seeding import each_number
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._fitting import (
    as_input,
    check_head,
    fitting_head,
    own_head,
    representation,
    with_sizes,
)
from fedgradnorm.models._input_rows import Fields, Inputs, call
from fedgradnorm.models._networks import linear_head
from fedgradnorm.models._stem import in_front, own_stem
from fedgradnorm.tasks._missing import labelled
from fedgradnorm.tasks._positions import forms


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


def first_head(
    network: nn.Module, client: Client, settings: Settings, in_common: bool = False
) -> nn.Module:
    """The head that a client begins a training with, its own or one ``in_common`` with others."""
    at_targets = not random_because(client, settings, in_common)
    return make_head(network, client, settings.seed, at_targets)


def make_head(network: nn.Module, client: Client, seed: int, at_targets: bool = False) -> nn.Module:
    """The client's own head, or a linear one whose weights depend on seed and name alone."""
    like = next(network.parameters()).detach()
    front = in_front(own_stem(client.stem, client.name, like), network)
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
        _try_loss(front, client, head)
    return head


class HeadsOnDemand(Mapping[str, nn.Module]):
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

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    @cached_property
    def features(self) -> int:
        """How many numbers a row has behind the network, found out on the first client's."""
        head = next(iter(self.values()))
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
        seeds = _head_seeds([client.name for client in clients], self._settings.seed)
        both = torch.empty(len(clients), outputs * features + outputs)
        for own, seed in zip(both.unbind(), seeds, strict=True):
            chance.manual_seed(seed)
            own.uniform_(-bound, bound, generator=chance)
        both = both.to(self._dtype)
        here = [k for k, one in enumerate(clients) if not random_because(one, self._settings)]
        biases = both[here, outputs * features :]
        start_at_targets(biases, [clients[k] for k in here])
        both[here, outputs * features :] = biases
        return both

    def make_all(self, start: Callable[[Mapping[str, nn.Module]], dict[str, nn.Module]]) -> None:
        """Make every head now, so that clients that do not fit are named; ``start`` may join."""
        self._made = start({name: self[name] for name in self})


def start_head(name: str, features: int, outputs: int, seed: int, dtype: torch.dtype) -> nn.Linear:
    """The linear head that the client of this name starts with."""
    with head_chance(name, seed):
        return linear_head(features, outputs).to(dtype=dtype)


@contextmanager
def head_chance(name: str, seed: int) -> Iterator[None]:
    """Chance that depends on seed and name alone."""
    with torch.random.fork_rng(devices=[]):
        (chosen,) = _head_seeds([name], seed)
        torch.manual_seed(chosen)
        yield


def _head_seeds(names: Iterable[str], seed: int) -> list[int]:
    return [found % 2**63 for found in each_number(names, seed, "head")]


def _try_loss(network: nn.Module, client: Client, head: nn.Module) -> None:
    """A ConfigError unless the client's own loss can be used, found out on its first rows."""
    task = client.task
    rows = 3 if task.outputs == 2 else 2  # so that rows and outputs cannot be mistaken
    x, y = client.learns_from()
    if isinstance(y, Tensor):
        x, y = x[there := labelled(y)], y[there]
    x, y = x[:rows], y[:rows]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        output = predict(network, head, as_input(x, network, "cpu", client.stem))
        try:
            task.check_loss(output, y.to(output.dtype) if y.is_floating_point() else y)
        except ConfigError as error:
            where = f"client {client.name!r}, task {client.task_name!r}"
            raise ConfigError(f"{where}: {error}") from error
