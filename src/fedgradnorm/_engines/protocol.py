"""What every engine offers: it runs the clients of a round and says what they reported.

Where engines differ, they are asked: how many rounds they take at once, whether their reports tell
the conflict between clients, whether there is anything to compile. The answers here are those of an
engine that takes one round at a time and holds every client's update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState
from fedgradnorm._round.tuning import Tuning


class Journal(Protocol):
    """Rows of many clients, written down piece by piece as they change."""

    def changed(self, everything: bool = False) -> dict[str, Any]:
        """The rows that changed since :meth:`settle`, or all that ever did."""

    def count(self, everything: bool = False) -> int:
        """How many rows these are."""

    def settle(self) -> None:
        """What changed so far is kept elsewhere."""

    def take(self, rows: Mapping[str, Any]) -> None:
        """Take over what :meth:`changed` returned."""

    def heads_by_shape(self) -> list[tuple[list[str], Tensor, Tensor]]:
        """Everybody's linear head in stacked rows: names, weights, biases, for each shape."""


class Engine(ABC):
    """Runs clients. Their private state lives here, keyed by client name.

    ``journal`` is there where it lives in rows of stacked tensors instead of modules.
    """

    name: ClassVar[str]

    @property
    def journal(self) -> Journal | None:
        """The rows of all clients, where there are such."""
        return None

    @abstractmethod
    def run_clients(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """Everybody named in ``active`` works on ``shared`` for a round."""

    def burst(self, server: ServerState) -> int:  # noqa: ARG002
        """How many rounds with this server may be asked for at once."""
        return 1

    def rounds(
        self,
        server: ServerState,  # noqa: ARG002
        first: int,  # noqa: ARG002
        actives: Sequence[Sequence[str]],  # noqa: ARG002
    ) -> list[dict[str, list[float]]]:
        """Whole rounds in a row, the server's part too; a row of columns for each of them.

        Nobody fails in any of them. Empty, and nothing has happened, where they have to be taken
        one by one. See :func:`fedgradnorm._round.server.columns` for the columns.
        """
        return []

    @property
    def conflict_obstacle(self) -> str | None:
        """Why the reports of a round do not tell the clients' conflict, or None if they do."""
        return None

    @abstractmethod
    def trial(self) -> Engine:
        """An engine for one round like this one's that leaves no trace and keeps every update."""

    def fuse(self) -> None:  # noqa: B027  # nothing to fuse is an answer
        """Let the compiler make few kernels of the many small ones, where there are any."""

    @abstractmethod
    def tune_heads(self, shared: Tensor, steps: int, round_number: int) -> None:
        """``steps`` on each client's head alone, on the finished and frozen ``shared`` (FedBABU).

        Batches go on with those of round ``round_number``; the network is in evaluation mode.
        """

    @abstractmethod
    def personalize(self, shared: Tensor, how: Tuning) -> dict[str, dict[str, Any]]:
        """Each client tunes a copy of ``shared`` and its head; what each kept, by name."""

    @abstractmethod
    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all.

        A client's own network is used where it has one. The work follows the clients named.
        """

    @abstractmethod
    def heads(self) -> Mapping[str, nn.Module]:
        """Each client's head."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All clients' private state, by name."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what any engine's ``state_dict`` returned."""
