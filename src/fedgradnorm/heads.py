"""What can be done with heads beside keeping them: averaged in every round, or tuned at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedgradnorm.client_round import head_phase
from fedgradnorm.engines import LoopEngine
from fedgradnorm.errors import ConfigError
from fedgradnorm.seeding import number


def check_alike(heads: Mapping[str, nn.Module]) -> None:
    """A ConfigError unless all heads have parameters of the same names and shapes."""
    shapes = {name: _shapes(head) for name, head in heads.items()}
    first = next(iter(heads))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise ConfigError(
                f"average_heads needs heads of one shape, but those of clients {first!r} and "
                f"{name!r} differ; keep heads personal (average_heads=False)"
            )


def _shapes(head: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in head.named_parameters()}


@torch.no_grad()
def average_heads(heads: Sequence[nn.Module], shares: Tensor) -> None:
    """Give every head the mean of all, head i counting ``shares[i]`` (FedAvg).

    >>> one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> average_heads([one, other], torch.tensor([1.0, 0.0]))
    >>> bool(one.weight == other.weight)
    True
    """
    parts = shares.tolist()
    for own in zip(*(head.parameters() for head in heads), strict=True):
        mean = sum(part * p.double() for part, p in zip(parts, own, strict=True) if part)
        for p in own:
            p.copy_(torch.as_tensor(mean))


def tune_heads(engine: LoopEngine, shared: Tensor, steps: int, first_batch: int) -> None:
    """``steps`` on each client's head alone, on the finished and frozen ``shared`` (FedBABU).

    Batches go on where training stopped, from batch number ``first_batch``; the network is in
    evaluation mode, so its running statistics stay as they are.
    """
    for name, state in engine.states.items():
        x, y = engine.data[name]["train"]
        network = engine.network
        network.vector.copy_(shared)
        if network.has_buffers:
            network.load_buffers(state.buffers)
        network.module.eval()
        state.head.train()

        def batch(
            step: int, name: str = name, x: Tensor = x, y: Tensor = y
        ) -> tuple[Tensor, Tensor]:
            rows = torch.from_numpy(engine.batches.rows(name, first_batch + step)).to(x.device)
            return x[rows], y[rows]

        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
            torch.manual_seed(number(engine.seed, "final", name) % 2**63)
            head_phase(engine.clients[name].task, state, network, batch, steps)
