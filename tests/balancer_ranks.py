"""One rank of a DDP run with a balancer: ``balancer_ranks.py RANK RANKS FOLDER``, without a port.

Each rank trains on its share of every global batch, so one rank trains on all of it. It writes the
weights after every step and the final parameters.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import fedgradnorm as fgn

STEPS, BATCH = 6, 8
TASKS = ("depth", "edges")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6))
        self.heads = nn.ModuleDict({"depth": nn.Linear(6, 1), "edges": nn.Linear(6, 2)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.trunk(x)
        return {task: head(features) for task, head in self.heads.items()}


def train(rank: int, ranks: int, case: str, **options: object) -> dict[str, object]:
    torch.manual_seed(0)
    network = Network().double()
    data = torch.randn(STEPS, BATCH, 5, dtype=torch.float64)
    model: nn.Module = network
    if ranks > 1:
        model = DistributedDataParallel(network, find_unused_parameters=case != "all present")
    balance = fgn.Balancer(TASKS, shared=network.trunk[-1], **options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    history = []
    for step in range(STEPS):
        x = data[step].chunk(ranks)[rank]
        out = model(x)
        losses = {"depth": 30 * (out["depth"][:, 0] - x[:, 0]).square().mean()}
        losses["edges"] = (out["edges"] - x[:, 1:3].sign()).square().mean()
        if case == "absent" and step in (1, 2) and rank == 1:
            del losses["edges"]
        if case == "absent" and step == 2 and rank == 0:
            del losses["depth"]
        if case == "NaN" and step == 3 and rank == ranks - 1:
            losses["edges"] = losses["edges"] * torch.nan
        loss = balance(losses)
        optimizer.zero_grad()
        loss.backward()
        if case != "NaN" or step != 3:  # what a GradScaler does
            optimizer.step()
        history.append((balance.weights, balance.norms, bool(loss.isfinite())))
    return {"history": history, "parameters": dict(network.state_dict())}


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    if ranks > 1:
        place = f"file://{folder / 'meeting'}"
        distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=ranks)
    found = {case: train(rank, ranks, case) for case in ("all present", "absent", "NaN")}
    found["by loss"] = train(rank, ranks, "absent", method="uw")
    torch.save(found, folder / f"{rank} of {ranks}.pt")
    if ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
