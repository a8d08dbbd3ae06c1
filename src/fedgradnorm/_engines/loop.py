"""The reference engine: one client after another, as the paper writes it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.protocol import Engine
from fedgradnorm._engines.scores import HostTargets, Scores, blaming
from fedgradnorm._round.client_round import (
    LocalSettings,
    Report,
    head_phase,
    local_round,
)
from fedgradnorm._round.client_state import ClientState
from fedgradnorm._round.evaluation import answers, evaluate, represented
from fedgradnorm._round.presence import batches_of
from fedgradnorm._round.private.private_client import PrivateClient
from fedgradnorm._round.private.private_round import private_round
from fedgradnorm._round.reports import Reports, StackedReports
from fedgradnorm._round.seeding import number
from fedgradnorm._round.tuning import Tuning, tune
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._flat import FlatNetwork, working_copy
from fedgradnorm.models._input_rows import Inputs
from fedgradnorm.models._stem import own_stem
from fedgradnorm.models._streamed.reading_ahead import ReadingAhead
from fedgradnorm.models._streamed.rows import Streamed, StreamedTargets, Targets
from fedgradnorm.tasks._missing import labelled


class LoopEngine(Engine):
    """Runs clients one by one on a scratch copy of the shared network."""

    name = "loop"

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        heads: Mapping[str, nn.Module],
        *,
        gauge: Sequence[str],
        how: LocalSettings,
        batch_size: int | None,
        seed: int,
        device: torch.device,
        bf16: bool = False,
    ) -> None:
        assert how.head_optimizer is not None
        self.clients = {client.name: client for client in clients}
        self.how, self.seed, self.device = how, seed, device
        self.rates = how.head_rates()
        self.network = working_copy(network, device, bf16=bf16)
        self.batches = batches_of(clients, batch_size, seed, how.steps)
        self.gauge = torch.cat([_range(self.network.slices[name], device) for name in gauge])
        place = Placed(self.network.module, device)
        self.data = {c.name: place.splits(c) for c in clients}
        self.states = {
            name: ClientState(
                copy.deepcopy(head).to(device),
                how.head_optimizer,
                self.network.buffers(),
                self.network.fresh_private(),
                own_stem(self.clients[name].stem, name, self.network.vector),
            )
            for name, head in heads.items()
        }
        self.private = self._private(network, batch_size)
        self._ahead = ReadingAhead(self.batches, self.data)
        self.host_targets = HostTargets()

    def _private(self, network: nn.Module, batch_size: int | None) -> dict[str, PrivateClient]:
        """The clients that clip and noise; they work on a scratch copy that is as it was given."""
        names = [name for name, client in self.clients.items() if client.privacy is not None]
        plain = FlatNetwork(network, self.device) if names else self.network
        found = {}
        for name in names:
            x, y = self.data[name]["train"]
            assert isinstance(x, Tensor)  # other inputs are refused before
            own = (self.clients[name], self.states[name].head, plain, (x, y))
            found[name] = PrivateClient(*own, self.how, batch_size, self.seed)
        return found

    def run_clients(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """Everybody in ``active`` works in turn; a client that fails is rolled back and named."""
        reports: dict[str, Report] = {}
        for name in self._ahead.in_turn(active, round_number):
            before = self.states[name].state_dict()
            report = self._run_client(name, shared, round_number)
            own_is_finite = all(p.isfinite().all() for p in self.states[name].parameters())
            if report.finite and own_is_finite:
                reports[name] = report
            else:
                self.states[name].load_state_dict(before)
        return self._stacked(shared, reports, failed=[n for n in active if n not in reports])

    def _run_client(self, name: str, shared: Tensor, round_number: int) -> Report:
        if name in self.private:
            with self._chance("noise", name, round_number):
                private, state = self.private[name], self.states[name]
                return private_round(private, state, shared, self.gauge, round_number)
        state, (x, y) = self.states[name], self.data[name]["train"]
        rows = torch.from_numpy(self.batches.of_round(round_number)[name]).to(self.device)
        self._enter(state)
        self.rates.follow(state.optimizer, round_number)
        with self._chance("noise", self.clients[name].owner, round_number):
            report = local_round(
                self.clients[name],
                state,
                self.network,
                shared,
                self.gauge,
                lambda step: (x[rows[step]], y[rows[step]]),
                (x, y),
                self.how,
            )
        if self.network.has_buffers:
            state.buffers = self.network.buffers()
        return report

    def _enter(self, state: ClientState) -> bool:
        """Put a client's own parts of the network in place; whether it has any."""
        if self.network.has_buffers:
            self.network.load_buffers(state.buffers)
        if state.private:
            self.network.put_private(state.private)
        return self.network.has_buffers or bool(state.private) or state.stem is not None

    @contextmanager
    def _chance(self, *counter: object) -> Iterator[None]:
        """Dropout and the like draw from torch's generator: make that a function of a counter."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(number(self.seed, *counter) % 2**63)
            yield

    def _stacked(self, shared: Tensor, reports: dict[str, Report], failed: list[str]) -> Reports:
        names = list(self.clients)

        def column(key: str) -> Tensor:
            values = [getattr(reports[n], key) if n in reports else 0.0 for n in names]
            return torch.tensor(values, dtype=torch.float64, device=self.device)

        updates = shared.new_zeros(len(names), len(shared))
        for name, report in reports.items():
            updates[names.index(name)] = report.update
        sizes = [float(c.size) for c in self.clients.values()]
        return StackedReports(
            active=torch.tensor([name in reports for name in names], device=self.device),
            size=torch.tensor(sizes, dtype=torch.float64, device=self.device),
            loss=column("loss"),
            loss_ratio=column("loss_ratio"),
            gauge_norm=column("gauge_norm"),
            updates=updates,
            failed=failed,
        )

    @torch.no_grad()
    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all.

        Clients one after another that hold the very same rows share one pass of the network.
        """
        scores = Scores(split, self.host_targets)
        held: Tensor | None = None
        seen: tuple[Inputs, list[Tensor]] | None = None
        wanted = self.clients if names is None else names
        asked = [name for name in wanted if split in self.data[name]]
        for name in asked:
            client, state = self.clients[name], self.states[name]
            vector = shared if state.own is None else state.own
            if vector is not held:
                self.network.vector.copy_(vector)
                held, seen = vector, None
            if self._enter(state):
                seen = None
            x, y = self.data[name][split]
            front, task = state.front(self.network.module), client.task
            with blaming(name, split):
                if isinstance(x, Streamed):
                    found = evaluate(task, front, state.head, x, y, client.scaling)
                    scores.put({name: found})
                    continue
                if seen is None or seen[0] is not x:
                    seen = x, list(represented(front, x))
                output = answers(state.head, seen[1])
            assert isinstance(y, Tensor)
            scores.add(client, output, y)
        return scores.in_order(asked)

    def tune_heads(self, shared: Tensor, steps: int, round_number: int) -> None:
        """One client after another; the network's running statistics stay as they are."""
        first = round_number * self.how.steps
        for name, state in self.states.items():
            self._put_in_place(state, shared)
            state.front(self.network.module).eval()
            self.rates.follow(state.optimizer, None)
            state.head.train()
            with self._chance("final", name):
                batch = partial(self._batch, name, first)
                task, clip = self.clients[name].task, self.how.head_clip
                head_phase(task, state, self.network, batch, steps, clip)

    def personalize(self, shared: Tensor, how: Tuning) -> dict[str, dict[str, Any]]:
        """One client after another, each on the scratch copy."""
        kept = {}
        for name, state in self.states.items():
            self._put_in_place(state, shared)
            held_out = self.data[name].get("validation")
            with self._chance("personal", name):
                batch = partial(self._batch, name, how.first)
                kept[name] = tune(
                    self.clients[name].task, state, self.network, batch, held_out, how
                )
        return kept

    def _put_in_place(self, state: ClientState, shared: Tensor) -> None:
        """Fill the scratch copy with the network and the parts of it that a client has now."""
        self.network.vector.copy_(shared if state.own is None else state.own)
        self._enter(state)

    def _batch(self, name: str, first: int, step: int) -> tuple[Inputs, Tensor]:
        """A client's batch number ``first + step``, counted from the run's start."""
        x, y = self.data[name]["train"]
        if self.clients[name].task.gaps:  # here every task may have batches of its own
            x, y = x[there := labelled(y)], y[there]
        batches = self.batches.only(name, len(x))
        rows = torch.from_numpy(batches.rows(name, first + step)).to(x.device)
        return x[rows], y[rows]

    def only(self, name: str) -> LoopEngine:
        """This engine for one of its clients: state, data and scratch copy are the same ones."""
        one = copy.copy(self)
        one.clients, one.states = {name: self.clients[name]}, {name: self.states[name]}
        one.data = {name: self.data[name]}
        return one

    def trial(self) -> LoopEngine:
        """The same clients and data, with copies of what a round changes."""
        assert self.how.head_optimizer is not None
        twin = copy.copy(self)
        twin.states = {n: s.copy(self.how.head_optimizer) for n, s in self.states.items()}
        return twin

    def heads(self) -> dict[str, nn.Module]:
        """Each client's head."""
        return {name: state.head for name, state in self.states.items()}

    def state_dict(self) -> dict[str, Any]:
        """All clients' private state, by name."""
        return {name: state.state_dict() for name, state in self.states.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; clients that it does not know keep theirs."""
        for name, client_state in self.states.items():
            if name in state:
                own = state[name].get("own")
                if own is not None and own.shape != self.network.vector.shape:
                    raise ValueError(f"a network of its own of shape {tuple(own.shape)}")
                client_state.load_state_dict(state[name])


def _range(part: slice, device: torch.device) -> Tensor:
    return torch.arange(part.start, part.stop, device=device)


class Placed:
    """Puts splits on a device; rows that several clients hold are there once."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._network, self._device = network, device
        self._dtype = next(network.parameters()).dtype
        self._kept: dict[tuple[int, int], tuple[Inputs, Inputs]] = {}

    def splits(self, client: Client) -> dict[str, tuple[Inputs, Any]]:
        """The client's splits on the device, in the network's dtype."""
        splits = {
            "train": client.learns_from(),
            "validation": client.validation,
            "test": client.test,
        }
        return {
            split: (self._inputs(pair[0], client.stem), self._targets(pair[1]))
            for split, pair in splits.items()
            if pair is not None
        }

    def _inputs(self, x: Inputs, stem: nn.Module | None) -> Inputs:
        # The source is kept beside it, so that no other tensor can come to have its id.
        key = id(x), id(stem)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = x, as_input(x, self._network, self._device, stem)
        return found[1]

    def _targets(self, y: Targets) -> Targets:
        if isinstance(y, StreamedTargets):
            return y.placed(self._moved)
        return self._moved(torch.as_tensor(y))

    def _moved(self, y: Tensor) -> Tensor:
        return y.to(self._device, self._dtype) if y.is_floating_point() else y.to(self._device)
