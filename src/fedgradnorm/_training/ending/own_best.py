"""Each client's own best round: network and head as they were then, for itself alone.

A head fits the network that it was trained on. So a client whose best round is another than the one
that all keep gets both of that round: its row, with that network as its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._federation.alone import Alone
from fedgradnorm._federation.federation import Federation
from fedgradnorm._state.table import NETWORK
from fedgradnorm._training.ending.best import Best, OwnBest


class Part:
    """One client: what it has now, and where it is put back."""

    def __init__(self, federation: Federation | Alone, client: Client) -> None:
        self.federation, self.names, self.clients = federation, [client.name], [client]

    def state_dict(self) -> dict[str, Any]:
        """The client's row, with the network that it works with as its own."""
        return self.federation.part(self.names[0])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self.federation.give(self.names[0], state)


class OwnBests:
    """The best states of the clients that have validation examples, each by its own loss."""

    def __init__(
        self,
        federation: Federation | Alone,
        patience: int | None,
        kind: type[Best] = OwnBest,
    ) -> None:
        self.best = {
            client.name: kind(Part(federation, client), patience)
            for client in federation.clients
            if client.validation is not None
        }

    @property
    def stopped(self) -> bool:
        """Whether nobody looks for a better round any more."""
        return all(best.stopped for best in self.best.values())

    def training(self, names: Sequence[str]) -> list[str]:
        """The clients that have not stopped."""
        return [name for name in names if name not in self.best or not self.best[name].stopped]

    def note(self, round_number: int, losses: Mapping[str, float]) -> None:
        """Take the validation losses of an evaluation."""
        for name, best in self.best.items():
            best.note(round_number, {name: losses[name]})

    def restore(self, but: int | None = None) -> None:
        """Give each client its best round back; round ``but`` is what they have already."""
        for best in self.best.values():
            if but is None:
                best.restore()
                continue
            if best.state is not None and best.round != but:
                best.federation.load_state_dict(best.state)
            best.state = None

    def about(self) -> dict[str, Any]:
        """What each client keeps: for run.json."""
        return {name: best.about() for name, best in self.best.items() if best.found}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart; a network that several clients keep is in it once."""
        networks, places = dict[int, Tensor](), dict[bytes, int]()
        clients = {}
        for name, best in self.best.items():
            clients[name] = best.state_dict()
            if best.state is not None and NETWORK in best.state:
                own: Tensor = best.state[NETWORK].cpu()
                place = places.setdefault(own.contiguous().numpy().tobytes(), len(places))
                networks[place] = own
                clients[name]["state"] = {**best.state, NETWORK: place}
        return {"networks": networks, "clients": clients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`; the run's own is to be loaded after it."""
        for name, best in self.best.items():
            part = dict(state["clients"][name])
            if part["state"] is not None:
                network = part["state"][NETWORK]
                network = state["networks"][network] if isinstance(network, int) else network
                part["state"] = {**part["state"], NETWORK: network}
            best.load_state_dict(part)
