"""What a client keeps to itself between rounds, and how it is written down."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import NoneType
from typing import Any

from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._stem import in_front


class ClientState:
    """What a client keeps to itself between rounds: head, its optimiser, first loss, statistics.

    ``private`` are the parameters of the network that are its own, and ``stem`` is what it has in
    front of the network, if anything; they are trained with the head.
    """

    def __init__(
        self,
        head: nn.Module,
        optimizer: Mapping[str, Any],
        buffers: dict[str, Tensor],
        private: dict[str, nn.Parameter] | None = None,
        stem: nn.Module | None = None,
    ) -> None:
        self.head, self.private, self.stem = head, private or {}, stem
        self.optimizer = optimizers.build(self.parameters(), optimizer)
        self.buffers = buffers
        self.first_loss: float | None = None
        self.rounds = 0
        self.own: Tensor | None = None  # a network of its own, if it has one, as a flat vector

    def parameters(self) -> list[nn.Parameter]:
        """All that the client trains for itself: the head's, then the private ones."""
        stem = () if self.stem is None else self.stem.parameters()
        return [*self.head.parameters(), *self.private.values(), *stem]

    @property
    def reaches_in(self) -> bool:
        """Whether the head's steps also move something before or in the network."""
        return len(self.parameters()) > len(list(self.head.parameters()))

    def front(self, network: nn.Module) -> nn.Module:
        """The network, behind the client's own first part if it has one."""
        return in_front(self.stem, network)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, as copies."""
        own: dict[str, Any] = {} if self.own is None else {"own": self.own.clone()}
        if self.private:
            own["private"] = {name: p.detach().clone() for name, p in self.private.items()}
        if self.stem is not None:
            own["stem"] = {key: _copied(value) for key, value in self.stem.state_dict().items()}
        return {
            # Cloned: a deep copy of a view holds all that it is a view of.
            "head": {key: _copied(value) for key, value in self.head.state_dict().items()},
            "optimizer": optimizers.saved(self.optimizer),
            "buffers": copy.deepcopy(self.buffers),
            "first_loss": self.first_loss,
            "rounds": self.rounds,
            **own,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        first, rounds, buffers = state["first_loss"], state["rounds"], dict(state["buffers"])
        if not isinstance(first, (float, int, NoneType)) or not isinstance(rounds, int):
            raise ValueError(f"first loss {first!r:.40} after {rounds!r:.40} rounds")
        if {k: b.shape for k, b in buffers.items()} != {
            k: b.shape for k, b in self.buffers.items()
        }:
            raise ValueError("running statistics have other names or shapes")
        self._load_private(state.get("private", {}))
        if (self.stem is None) != ("stem" not in state):
            raise ValueError("only one of state and client has a stem")
        if self.stem is not None:
            self.stem.load_state_dict(state["stem"])
        self.head.load_state_dict(state["head"])
        optimizers.restore(self.optimizer, state["optimizer"])
        self.buffers, self.first_loss, self.rounds = buffers, first, rounds
        self.own = state.get("own")

    def _load_private(self, values: Mapping[str, Tensor]) -> None:
        """Fill the private parameters, which stay the ones that the optimiser knows."""
        shapes = {name: p.shape for name, p in self.private.items()}
        if {name: value.shape for name, value in values.items()} != shapes:
            raise ValueError("private parameters have other names or shapes")
        for name, value in values.items():
            self.private[name].data.copy_(value)

    def copy(self, optimizer: Mapping[str, Any]) -> ClientState:
        """The same state again, with a head and an ``optimizer`` of its own."""
        private = {name: nn.Parameter(p.detach().clone()) for name, p in self.private.items()}
        head, stem = copy.deepcopy(self.head), copy.deepcopy(self.stem)
        twin = ClientState(head, optimizer, self.buffers, private, stem)
        twin.load_state_dict(self.state_dict())
        return twin


def parts_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """A client's own parts of the network, by name: running statistics and private parameters."""
    return {**state["buffers"], **state.get("private", {})}


def trained_stem(client: Client, state: Mapping[str, Any]) -> nn.Module | None:
    """A client's first part as its state has it, on the CPU; None if it has none."""
    if client.stem is None:
        return None
    stem = copy.deepcopy(client.stem).cpu()
    kinds = [t.dtype for t in state["stem"].values() if isinstance(t, Tensor)]
    floating = next((kind for kind in kinds if kind.is_floating_point), None)
    stem.to(dtype=floating).load_state_dict(state["stem"])
    return stem


def as_state(network: nn.Module, parts: Mapping[str, Tensor]) -> dict[str, Any]:
    """The same as a part of a state, for a network that is divided in the same way."""
    private = {name: parts[name] for name in private_names(network)}
    buffers = {name: parts[name] for name, _ in network.named_buffers()}
    return {"buffers": buffers, **({"private": private} if private else {})}


def _copied(value: Any) -> Any:
    """A part of a module's state; what its class adds to it may be no tensor."""
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
