"""All clients' rows in one tensor, all heads in one step: what those who run many at once need.

Everything lives in the clients' own state, which is a loop engine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.batched.first_losses import FirstLosses
from fedgradnorm._engines.batched.grouping import group_heads
from fedgradnorm._engines.batched.head_optimizers import HeadOptimizers
from fedgradnorm._engines.batched.joined_data import JoinedData
from fedgradnorm._engines.batched.plan import Plan, Planner
from fedgradnorm._engines.batched.row_windows import RowWindows
from fedgradnorm._engines.batched.together import Together
from fedgradnorm._engines.loop import LoopEngine
from fedgradnorm._engines.passes.dense import DensePass
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm.models._flat import working_copy


class Assembly(Together):
    """Clients with joined data, grouped heads and plans, around the loop that keeps their state."""

    optimizers: HeadOptimizers
    data: JoinedData

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        heads: Mapping[str, nn.Module],
        *,
        gauge: Sequence[str],
        bf16: bool = False,
        **settings: Any,
    ) -> None:
        """With the settings of a :class:`LoopEngine`."""
        self.loop = loop = LoopEngine(network, clients, heads, gauge=gauge, bf16=bf16, **settings)
        self.how, self.device = how, device = loop.how, loop.device
        assert how.head_optimizer is not None
        self.front = working_copy(network, device, bf16=bf16)
        self.front.module.train()
        self.streams = Streams(device)
        self.dense: DensePass | None = None  # where the network has a closed form
        inputs = [client.train[0] for client in clients]
        plain = all(isinstance(x, Tensor) and x.ndim == 2 for x in inputs)
        if plain and not bf16 and DensePass.fits(network, gauge):
            self.dense = DensePass(self.front, gauge, self.streams)
        own_heads = {name: state.head.train() for name, state in loop.states.items()}
        self.groups = group_heads(clients, own_heads, loop.batches.batch)
        self.data = self._joined()
        self.sizes = torch.tensor([float(c.size) for c in clients]).to(device, torch.float64)
        self.optimizers = HeadOptimizers(
            loop.states, how.head_optimizer, device, self.streams, how.head_clip
        )
        self.first_losses = FirstLosses(loop)
        self.planner = Planner(self.groups, device, {c.name: c.owner for c in clients})
        self.windows = RowWindows(loop.batches, self.data.begin, device)

    def _joined(self) -> JoinedData:
        """All training rows in one tensor, of which the loop's clients keep views."""
        own = self.loop.data
        joined = JoinedData(self.groups, {name: splits["train"] for name, splits in own.items()})
        for name, splits in own.items():
            splits["train"] = joined.inputs_of(name), splits["train"][1]
        return joined

    @property
    def clients(self) -> dict[str, Client]:
        """The clients by name, in the order of the reports' rows."""
        return self.loop.clients

    @property
    def gauge(self) -> Tensor:
        """Where the gauge is in the shared vector."""
        return self.loop.gauge

    def rows_of(self, round_number: int, plan: Plan) -> Tensor:
        """Rows of the joint inputs that a round reads: [steps, joint batch]."""
        rows = self.windows.coming(round_number, 1)[0]
        return rows if plan.columns is None else rows[:, plan.columns]
