"""FedRep and FedAvg in Apple's pfl-research, from PyPI as ``pfl``: its simulation and local SGD.

pfl has no FedRep. What its user has to write is here: a module with a loss, a data set that gives
the batches in the order of ours, and an algorithm that trains the client's head before pfl's own
local SGD trains the network. The rest is pfl's: the cohort, the network restored for every client,
differences of weights, their mean, the central optimizer. It gets the best we know of: heads stay
in memory and are not sent around, the frozen network runs without autograd, every Adam is fused,
nothing is evaluated or logged. It runs clients one by one and the frozen network for every step.

pfl's central optimizer sees differences of weights, lr * steps times our mean gradients; Adam does
not mind the factor once its eps has it too. But a difference of float32 weights has lost digits
that a gradient still has, and Adam blows small gradients up: after three rounds losses agree to a
few 1e-5 instead of 1e-7. In float64 (with pfl's cast of differences to float32 taken out) they
agree like the plain loop's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from work import LR, Work, make_batches, make_heads, make_network

import fedgradnorm as fgn
from fedgradnorm._round.batches import Batches

EPS = 1e-8  # of Adam, in the scale of gradients


@dataclass
class Person:
    """What one client keeps to itself."""

    task: fgn.Task
    head: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Tensor


class Shared(nn.Module):
    """The network that is sent around, with the loss and metrics that pfl asks a module for."""

    def __init__(self, network: nn.Module, people: dict[str, Person]) -> None:
        super().__init__()
        self.network, self.people = network, people

    def loss(self, x: Tensor, y: Tensor, client: str) -> Tensor:
        person = self.people[client]
        loss = person.task.loss(person.head(self.network(x)), y)
        person.loss += loss.detach()
        return loss

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, client: str) -> dict[str, Weighted]:
        person = self.people[client]
        loss = person.task.loss(person.head(self.network(x)), y)
        return {"loss": Weighted(float(loss) * len(x), len(x))}


class Rows(Dataset):
    """A client's data, read in the order of ``rows`` [steps, batch]."""

    rows: Tensor | None = None

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, ...]]:
        if self.rows is None:  # pfl evaluates before its first round
            yield from super().iter(batch_size)
        else:
            for rows in self.rows:
                yield tuple(data[rows] for data in self.raw_data)


def head_step(
    module: Shared, _optimizer: object, batch: list[Tensor], about: dict[str, Any], *_: object
) -> None:
    """One step of the client's head on the frozen network."""
    person, (x, y) = module.people[about["client"]], batch
    with torch.no_grad():
        features = module.network(x)
    person.optimizer.zero_grad()
    person.task.loss(person.head(features), y).backward()
    person.optimizer.step()


class FedRep(FederatedAveraging):
    """Federated averaging whose clients first train a head of their own."""

    def __init__(self, batches: Batches, head_steps: int) -> None:
        super().__init__()
        self.batches, self.head_steps = batches, head_steps

    def train_one_user(
        self,
        initial_model_state: Any,
        model: PyTorchModel,
        user_dataset: Rows,
        central_context: Any,
    ) -> tuple[Any, Metrics]:
        rows = self.batches.of_round(central_context.current_central_iteration)
        user_dataset.rows = torch.as_tensor(rows[user_dataset.user_id])
        person = model.pytorch_model.people[user_dataset.user_id]
        person.head.requires_grad_(True)
        params = replace(central_context.model_train_params, local_num_steps=self.head_steps)
        model.do_multiple_epochs_of(user_dataset, params, head_step)
        person.head.requires_grad_(False)
        person.loss.zero_()
        return super().train_one_user(initial_model_state, model, user_dataset, central_context)


class PflRounds:
    """Rounds of FedRep in pfl, from the network, heads and rows that ours start with."""

    def __init__(self, work: Work, clients: list[fgn.Client]) -> None:
        network = make_network(work)
        people = {
            client.name: Person(
                client.task,
                head := make_heads(network, [client])[client.name],
                torch.optim.Adam(head.parameters(), lr=LR, fused=True),
                torch.zeros(()),
            )
            for client in clients
        }
        self.work, self.people = work, people
        shared = Shared(network, people)
        eps = EPS * LR * work.shared_steps
        central = torch.optim.Adam(shared.parameters(), lr=LR, eps=eps, fused=True)
        self.model = PyTorchModel(shared, torch.optim.SGD, central)
        data = {c.name: _rows(c) for c in clients}
        sampler = itertools.cycle(data).__next__
        federated = FederatedDataset(data.__getitem__, sampler)
        self.backend = SimulatedBackend(federated, federated)
        self.algorithm = FedRep(make_batches(work, clients), work.head_steps)

    def rounds(self, first: int, count: int) -> None:
        """pfl continues from where it was until it has done ``first + count`` rounds."""
        self.algorithm.run(
            NNAlgorithmParams(first + count, 10**9, len(self.people), None),
            self.backend,
            self.model,
            NNTrainHyperParams(
                local_batch_size=self.work.batch,
                local_num_epochs=None,
                local_num_steps=self.work.shared_steps,
                local_learning_rate=LR,
            ),
            send_metrics_to_platform=False,
        )

    @property
    def loss(self) -> dict[str, float]:
        """Each client's mean over its shared steps."""
        steps = self.work.shared_steps
        return {name: float(person.loss) / steps for name, person in self.people.items()}


class Classifier(nn.Module):
    """A whole network with the loss and metrics that pfl asks a module for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}


class PflAveraging:
    """FedAvg as pfl has it: local SGD from the server's network, and the mean of differences.

    All of it is pfl's own code. Its data is on the device before the first round, and nothing is
    evaluated or logged, so that a round is training alone.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: list[fgn.Client],
        device: str,
        *,
        cohort: int,
        batch: int,
        steps: int,
        lr: float,
    ) -> None:
        module = Classifier(network).to(device)
        central = torch.optim.SGD(module.parameters(), lr=1.0)
        self.model = PyTorchModel(module, torch.optim.SGD, central)
        data = {
            client.name: Dataset(tuple(torch.as_tensor(part).to(device) for part in client.train))
            for client in clients
        }
        sampler = itertools.cycle(data).__next__
        federated = FederatedDataset(data.__getitem__, sampler)
        self.backend = SimulatedBackend(federated, federated)
        self.algorithm, self.cohort = FederatedAveraging(), cohort
        self.params = NNTrainHyperParams(
            local_batch_size=batch,
            local_num_epochs=None,
            local_num_steps=steps,
            local_learning_rate=lr,
        )

    def rounds(self, first: int, count: int) -> None:
        """pfl continues from where it was until it has done ``first + count`` rounds."""
        self.algorithm.run(
            NNAlgorithmParams(first + count, 10**9, self.cohort, None),
            self.backend,
            self.model,
            self.params,
            send_metrics_to_platform=False,
        )
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _rows(client: fgn.Client) -> Rows:
    about = {"client": client.name}
    x, y = (torch.as_tensor(part) for part in client.train)
    return Rows((x, y), user_id=client.name, train_kwargs=about, eval_kwargs=about)
