"""Each client's own best round: network and head as they were then, for itself alone.

A head fits the network that it was trained on. So a client whose best round is another than the one
that all keep gets both of that round: its state, with that network as its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._federation.federation import Federation
from fedgradnorm._training.ending.best import OwnBest


class Moment:
    """A federation whose state is copied once an evaluation, however many keep a part of it."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.names, self.clients = federation.names, federation.clients
        self._state: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The whole state."""
        if self._state is None:
            self._state = self.federation.state_dict()
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.federation.load_state_dict(state)

    def pass_by(self) -> None:
        """The evaluation is over: the next copy is of another state."""
        self._state = None


class Part:
    """One client of a federation: what it has now, and where it is put back."""

    def __init__(self, moment: Moment, client: Client) -> None:
        self.moment, self.names, self.clients = moment, [client.name], [client]

    def state_dict(self) -> dict[str, Any]:
        """The client's state, with the network that it works with as its own."""
        return self.moment.federation.part(self.moment.state_dict(), self.names[0])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.moment.federation.give(self.names[0], state)


class OwnBests:
    """The best states of the clients that have validation rows, each by its own loss."""

    def __init__(self, moment: Moment, patience: int | None) -> None:
        self.best = {
            client.name: OwnBest(Part(moment, client), patience)
            for client in moment.clients
            if client.validation is not None
        }

    @property
    def stopped(self) -> bool:
        """Whether nobody looks for a better round any more."""
        return all(best.stopped for best in self.best.values())

    def note(self, round_number: int, losses: Mapping[str, float]) -> None:
        """Take the validation losses of an evaluation."""
        for name, best in self.best.items():
            best.note(round_number, {name: losses[name]})

    def restore(self, but: int) -> None:
        """Give each client its best round back; who likes round ``but`` best has that already."""
        for best in self.best.values():
            if best.state is not None and best.round != but:
                best.federation.load_state_dict(best.state)
            best.state = None

    def about(self) -> dict[str, Any]:
        """What each client keeps: for run.json."""
        return {name: best.about() for name, best in self.best.items() if best.found}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart; a network that several clients keep is in it once."""
        networks: dict[int, Tensor] = {}
        places: dict[int, int] = {}
        clients = {}
        for name, best in self.best.items():
            clients[name] = best.state_dict()
            if best.state is not None:
                own: Tensor = best.state["own"]
                place = places.setdefault(id(own), len(places))
                networks[place] = own
                clients[name]["state"] = {**best.state, "own": place}
        return {"networks": networks, "clients": clients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned; the federation's own is to be loaded after it."""
        for name, best in self.best.items():
            part = dict(state["clients"][name])
            if part["state"] is not None:
                network = state["networks"][part["state"]["own"]]
                part["state"] = {**part["state"], "own": network}
            best.load_state_dict(part)
