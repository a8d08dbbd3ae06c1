"""The clients' part of a round in one forward pass, up to what the server asks of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgradnorm._engines.batched.frozen_features import frozen_features
from fedgradnorm._engines.batched.plan import Plan
from fedgradnorm._engines.batched.together import Together
from fedgradnorm._engines.passes.shared_pass import Pass


def one_pass(
    crew: Together, run: Pass, network: nn.Module, shared: Tensor, rows: Tensor, plan: Plan
) -> tuple[list[Tensor], list[Tensor]]:
    """Losses of each part's clients, and their squared gauge norms by stretches of the plan.

    ``rows`` [steps, joint batch] are rows of the crew's data; ``network`` holds ``shared`` once
    ``run`` has been forward.
    """
    once = plan.shared
    passing = rows[0] if once is None else rows[0][once.first]
    output = run.forward(shared, crew.data.inputs[passing], once)
    if not crew.how.together:
        many = crew.how.head_steps > 1
        later = frozen_features(network, crew.data, rows, plan) if many else None
        crew.head_phase(lambda s: later(s) if later and s else output, rows, plan)
    losses, signal = crew.signal(output, rows[0], plan)
    return losses, run.measure(signal, plan.stretches)


def in_order(
    losses: Sequence[Tensor], squared: Sequence[Tensor], positions: Tensor, clients: int
) -> tuple[Tensor, Tensor]:
    """Losses and gauge norms in the order of the clients, 0 where nothing was measured."""
    found = torch.stack([torch.cat(list(losses)), torch.cat(list(squared))]).double()
    found[1].sqrt_()
    loss, norm = found.new_zeros(2, clients).index_copy_(1, positions, found).unbind()
    return loss, norm
