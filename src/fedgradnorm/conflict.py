"""How far clients pull the shared network in different directions: cosines between their updates.

Only looked at, never used: recording changes no number of the training, whatever the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedgradnorm.client_round import ClientState
from fedgradnorm.engines.base import Engine
from fedgradnorm.engines.distributed import DistributedEngine
from fedgradnorm.engines.joint import JointEngine
from fedgradnorm.engines.loop import LoopEngine
from fedgradnorm.reports import Reports

Pair = tuple[str, str, float]
"""Two clients and the cosine between their updates."""


@torch.no_grad()
def pairs(reports: Reports, names: Sequence[str]) -> list[Pair]:
    """cos_ij = G_ij / sqrt(G_ii G_jj) of all pairs i < j that reported; G is the Gram matrix.

    A pair with a vanished update has no cosine and is left out.
    """
    gram = reports.gram().double()
    length = gram.diagonal().clamp_min(0).sqrt()
    cosine = (gram / length / length[:, None]).clamp(-1, 1).tolist()
    there = (reports.active & torch.isfinite(length) & (length > 0)).nonzero().flatten().tolist()
    return [(names[i], names[j], cosine[i][j]) for i in there for j in there if i < j]


def obstacle(engine: Engine) -> str | None:
    """Why this engine's own rounds hold no single updates, or None if they do."""
    if isinstance(engine, DistributedEngine):
        return "the updates are spread over the ranks, whose engines may form no single ones"
    return "it forms no single updates" if isinstance(engine, JointEngine) else None


def trial(engine: Engine) -> Engine:
    """An engine for one round like this one's that leaves no trace and keeps every update."""
    if isinstance(engine, DistributedEngine):
        twin = copy.copy(engine)
        twin.local = None if engine.local is None else _one_by_one(engine.local)
        return twin
    assert isinstance(engine, LoopEngine)
    return _one_by_one(engine)


def _one_by_one(engine: LoopEngine) -> LoopEngine:
    """The loop over the same clients and data, with copies of what a round changes."""
    assert engine.how.head_optimizer is not None
    twin = LoopEngine.__new__(LoopEngine)  # the data is there already: it need not be placed again
    states = {n: _copied(s, engine.how.head_optimizer) for n, s in engine.states.items()}
    vars(twin).update(vars(engine), states=states)
    return twin


def _copied(state: ClientState, optimizer: Mapping[str, Any]) -> ClientState:
    twin = ClientState(copy.deepcopy(state.head), optimizer, {})
    twin.load_state_dict(state.state_dict())
    return twin
