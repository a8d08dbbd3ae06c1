"""How far clients pull the shared network in different directions: cosines between their updates.

Only looked at, never used: recording changes no number of the training, whatever the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedgradnorm._round.reports import Reports

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
