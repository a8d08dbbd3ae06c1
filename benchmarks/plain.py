"""The plain loop that speeds are measured against: straightforward PyTorch, client after client.

What a careful researcher would write: one working copy of the network, parameters loaded per
client, head steps on the frozen network, gradients on the shared one, a weighted mean, Adam. No
recomputation beyond what the algorithm's text asks for and no copies that are not needed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import fedgradnorm as fgn
from fedgradnorm._round.batches import Batches


class PlainLoop:
    """FedGradNorm (or, with ``weigh=False``, FedRep in gradient form), one client at a time."""

    def __init__(
        self,
        network: nn.Module,
        heads: dict[str, nn.Module],
        clients: Sequence[fgn.Client],
        batches: Batches,
        *,
        head_steps: int,
        shared_steps: int,
        lr: float,
        weigh: bool = True,
        device: str = "cpu",
    ) -> None:
        self.shared = copy.deepcopy(network).to(device)
        self.local = copy.deepcopy(network).to(device)
        self.heads = {name: copy.deepcopy(head).to(device) for name, head in heads.items()}
        self.clients, self.batches = clients, batches
        self.head_steps, self.shared_steps, self.lr = head_steps, shared_steps, lr
        self.data = {c.name: tuple(t.to(device) for t in c.train) for c in clients}
        self.head_optimizers = {
            name: torch.optim.Adam(head.parameters(), lr=lr) for name, head in self.heads.items()
        }
        self.optimizer = torch.optim.Adam(self.shared.parameters(), lr=lr)
        self.p = torch.ones(len(clients), device=device)
        self.weight_optimizer = torch.optim.Adam([self.p], lr=0.004)
        self.weigh = weigh
        self.first_loss: dict[str, Tensor] = {}
        self.loss: dict[str, float] = {}

    def rounds(self, first: int, count: int) -> None:
        for k in range(first, first + count):
            self.round(k)
        if self.p.is_cuda:
            torch.cuda.synchronize()

    def round(self, k: int) -> None:
        gradients, ratios, norms = [], [], []
        rows = self.batches.of_round(k)
        for client in self.clients:
            gradient, loss = self._client(client, rows[client.name])
            gradients.append(gradient)
            first = self.first_loss.setdefault(client.name, loss)
            ratios.append(loss / first)
            norms.append(torch.cat([g.flatten() for g in gradient[-2:]]).norm())
            self.loss[client.name] = float(loss)
        if self.weigh:
            self._weigh(torch.stack(ratios), torch.stack(norms))
        share = self.p / len(self.clients)
        for i, parameter in enumerate(self.shared.parameters()):
            parameter.grad = sum(share[j] * g[i] for j, g in enumerate(gradients))
        self.optimizer.step()

    def _client(self, client: fgn.Client, rows: object) -> tuple[list[Tensor], Tensor]:
        head, optimizer = self.heads[client.name], self.head_optimizers[client.name]
        x, y = self.data[client.name]
        rows = torch.as_tensor(rows).to(x.device)
        with torch.no_grad():
            for mine, theirs in zip(self.local.parameters(), self.shared.parameters(), strict=True):
                mine.copy_(theirs)
        for s in range(self.head_steps):
            with torch.no_grad():
                features = self.local(x[rows[s]])
            optimizer.zero_grad()
            client.task.loss(head(features), y[rows[s]]).backward()
            optimizer.step()
        mean, total = None, torch.zeros((), device=x.device)
        parameters = list(self.local.parameters())
        for s in range(self.shared_steps):
            loss = client.task.loss(head(self.local(x[rows[s]])), y[rows[s]])
            gradient = torch.autograd.grad(loss, parameters)
            total += loss.detach() / self.shared_steps
            with torch.no_grad():
                if self.shared_steps > 1:
                    for parameter, g in zip(parameters, gradient, strict=True):
                        parameter -= self.lr * g
                    scaled = [g / self.shared_steps for g in gradient]
                    mean = (
                        scaled
                        if mean is None
                        else [a + b for a, b in zip(mean, scaled, strict=True)]
                    )
                else:
                    mean = list(gradient)
        assert mean is not None
        return mean, total

    def _weigh(self, ratios: Tensor, norms: Tensor) -> None:
        with torch.no_grad():
            target = (self.p * norms).mean() * (ratios / ratios.mean()) ** 0.9
            self.p.grad = torch.sign(self.p * norms - target) * norms
            self.weight_optimizer.step()
            self.p.clamp_(min=1e-3)
            self.p.mul_(len(self.p) / self.p.sum())
