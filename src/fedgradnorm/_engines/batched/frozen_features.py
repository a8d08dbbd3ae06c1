"""The frozen network's outputs for the steps of the heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedgradnorm._engines.batched.plan import Plan
from fedgradnorm._engines.batched.together import JointRows
from fedgradnorm._round.evaluation import in_parts
from fedgradnorm.models._input_rows import Inputs, call


@torch.no_grad()
def frozen_features(
    network: nn.Module, data: JointRows, rows: Tensor, plan: Plan
) -> Callable[[int], Tensor]:
    """The network's outputs for each step in ``rows``; no row is computed more often than once.

    Where the steps visit the data more than once, all of the active clients' rows are computed
    instead of all of the visits.
    """
    if plan.shared is not None:
        once = plan.shared
        found = frozen_features(network, data, rows[:, once.first], replace(plan, shared=None))
        return lambda step: once.spread(found(step))
    names = plan.names
    if rows.numel() < sum(data.sizes[name] for name in names):
        outputs = _forward(network, data.inputs[rows.flatten()])
        return lambda step: outputs.view(*rows.shape, *outputs.shape[1:])[step]
    if plan.columns is None:
        table = _forward(network, data.inputs)
    else:
        stretches = dict.fromkeys((data.begin[name], data.sizes[name]) for name in names)
        device = data.inputs.device
        here = torch.cat([torch.arange(a, a + n, device=device) for a, n in stretches])
        outputs = _forward(network, data.inputs[here])
        table = outputs.new_empty(len(data.inputs), *outputs.shape[1:])
        table[here] = outputs
    return lambda step: table[rows[step]]


def _forward(network: nn.Module, x: Inputs) -> Tensor:
    return torch.cat([call(network, part) for part in in_parts(x)])
