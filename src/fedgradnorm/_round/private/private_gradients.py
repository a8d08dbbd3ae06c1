"""A private client's gradients: clipped sums with noise, in place of plain means.

Each step s draws one batch in which every example is with chance q = b / n (Poisson), for a batch
size b and n examples. From it are taken, one after the other, the head's gradient, the shared
network's and the loss, as in the round of any other client. Each is a sum over examples, of
gradients clipped to C or of losses clipped to L, with normal noise, over b:

    (sum_i g_i min(1, C / |g_i|) + sigma_g C z) / b,    (sum_i min(l_i, L) + sigma_l L z) / b.

Normal noises on one batch add up as 1 / sigma^2 = sum_j 1 / sigma_j^2, whatever a later one makes
of an earlier one's outcome. The loss has the part a of that (``loss_share``), its u gradients have
the rest in equal parts: sigma_l = sigma / sqrt(a), sigma_g = sigma sqrt(u / (1 - a)). So a step
costs as much as one sum with noise multiplier sigma. With ``phases="joint"`` head and network
are one gradient, clipped together, and u = 1.

The head's steps have noise too: one row in a head without noise would change every other row's
gradient of the shared network, and no clipping would bound that.
"""

from __future__ import annotations

import hashlib
import logging
import math

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.noise import Noise, noise_from
from fedgradnorm._privacy.per_example import (
    Clipped,
    Parameters,
    RowGradients,
    check_rows,
    clipped_losses,
    row_loss,
)
from fedgradnorm._privacy.plan import FIRST
from fedgradnorm._round.evaluation import predict
from fedgradnorm._round.local_update import LocalSpec, Report
from fedgradnorm._round.private.private_plan import loss_bound, plan_of
from fedgradnorm._state.table import OWN, Layout, Row
from fedgradnorm.models._flat import FlatNetwork

log = logging.getLogger("fedgradnorm")

FLOOR = 0.05  # of the largest loss that counts: the least first loss, so that no ratio is absurd


class PrivateClient:
    """One private client and its examples; ``network`` is a scratch copy.

    ``noise`` is the noise multiplier of a step. Whoever charges the client's rounds sets it.
    """

    def __init__(
        self,
        client: Client,
        head: nn.Module,
        network: FlatNetwork,
        data: tuple[Tensor, Tensor],
        how: LocalSpec,
        batch_size: int | None,
        seed: int,
    ) -> None:
        assert client.privacy is not None
        self.client, self.terms, self.how = client, client.privacy, how
        self.network, self.data = network, data
        self.rate, self.noise = plan_of(client, how, batch_size).rate, math.nan
        self.batch = self.rate * client.size
        self.bound = loss_bound(client.task, self.terms)
        self._source = noise_from(self.terms.noise, seed).of(client.name)
        x, y = data
        try:
            self.mapped = check_rows(client.task, network.module, head, x[:2], y[:2])
        except ConfigError as error:
            raise ConfigError(f"client {client.name!r} has privacy: {error}") from None

    def uses(self, step: int) -> int:
        """How many gradients are taken from the batch of this step."""
        if self.how.joint_phases:
            return 1
        return (step < self.how.head_steps) + (step < self.how.shared_steps)

    def gradient_noise(self, step: int) -> float:
        """sigma_g of this step."""
        share = self.terms.loss_share if step < self.how.shared_steps else 0.0
        return self.noise * math.sqrt(self.uses(step) / (1 - share))

    @property
    def loss_noise(self) -> float:
        """sigma_l; infinite where no loss is reported."""
        share = self.terms.loss_share
        return self.noise / math.sqrt(share) if share else math.inf

    def norm_of(self, measured: float, numbers: int) -> float:
        """The gradient norm of a mean of noisy gradients, at no extra privacy cost.

        ``measured`` is the norm of ``numbers`` numbers. The noise has the expected square length
        d s^2, for d numbers with standard deviation s. ``corrected`` subtracts it, and leaves at
        least the standard deviation of that square, s^2 sqrt(2 d): a shorter gradient cannot be
        told from none.
        """
        if self.terms.norm == "noised":
            return measured
        steps = self.how.shared_steps
        noises = [self.gradient_noise(s) * self.terms.clip / self.batch for s in range(steps)]
        variance = sum(noise**2 for noise in noises) / steps**2
        floor = variance * math.sqrt(2 * numbers)
        return math.sqrt(max(measured**2 - numbers * variance, floor))

    def source(self, round_number: int) -> Noise:
        return self._source.of(round_number)


def question(own: Tensor, rounds: int, shared: Tensor, round_number: int) -> str:
    """A digest of all that a client's answer depends on, other than its examples and the noise.

    ``own`` are its own parameters after ``rounds`` rounds.
    """
    digest = hashlib.sha256(f"{round_number} {rounds} ".encode())
    for part in (shared, own):
        digest.update(part.detach().cpu().contiguous().reshape(-1).numpy().tobytes())
    return digest.hexdigest()


class PrivateGradients:
    """One client's gradients and losses of one round, all of them noisy.

    ``shared`` and ``own`` tell where parameters are; ``head`` is a module that holds the client's
    own parameters once ``load`` has been called with its row.
    """

    def __init__(
        self, private: PrivateClient, shared: Layout, own: Layout, head: nn.Module, noise: Noise
    ) -> None:
        if not private.noise > 0:
            raise ValueError(f"client {private.client.name!r}: nobody has charged this round")
        self._private, self._shared, self._own, self._head = private, shared, own, head
        self._network, self._task = private.network, private.client.task
        self._source = noise
        self._batches: dict[int, Tensor] = {}  # one batch per step, for all that is taken from it
        self._network.module.train()
        head.train()

    def of(
        self, networks: Tensor, row: Row, step: int, *, shared: bool, own: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The noisy loss of a step's batch and the noisy mean gradients."""
        x, y = self._batch(step)
        heads, network = self._load(networks, row), self._network.module
        if not shared:
            gradient, _ = self._gradient("head", step, heads, *self._features(x), y)
            return networks.new_zeros(1), None, gradient[None]
        parameters = {f"network.{n}": v[0] for n, v in self._shared.views(networks).items()}
        parameters |= heads if own else {}
        gradient, sums = self._gradient("shared", step, parameters, network, x, y)
        before = self._private.how.report_loss == "before"
        loss = self._noisy_loss(sums.loss, step) if before else 0.0
        size = self._shared.size
        own_gradient = gradient[None, size:] if own else None
        return _one(loss).to(networks.device), gradient[None, :size], own_gradient

    @torch.no_grad()
    def _features(self, x: Tensor) -> tuple[nn.Module | None, Tensor]:
        """None and the network's features; if they fail for an example, the network and ``x``."""
        try:
            return None, self._network.module(x) if len(x) else x
        except Exception as error:
            log.warning("client %r: features one by one: %s", self._private.client.name, error)
            return self._network.module, x

    def losses(self, networks: Tensor, row: Row, step: int) -> Tensor:
        """The noisy loss after a step."""
        x, y = self._batch(step)
        self._load(networks, row)
        return _one(self._noisy_loss(self._losses(x, y), step)).to(networks.device)

    def finish(self, report: Report, norm_layer: Tensor | slice, row: Row, before: Row) -> Report:
        """The report as it is sent: a loss of 1 where none is reported, and the corrected norm.

        A client whose numbers are not finite keeps the ``row`` it had ``before``, and sends the
        noise of a round in which every example's gradient was zero.
        """
        update, norm = report.update, report.grad_norm
        if not all(bool(part.isfinite().all()) for part in (update, norm, row[OWN])):
            log.warning("client %r: not finite; it sends only noise", self._private.client.name)
            for key, value in before.items():
                row[key].copy_(value)
            how, scale = self._private.how, self._private.terms.clip / self._private.batch
            if how.sends == "model":
                scale *= how.shared_steps * how.local_optimizer["lr"]
            deviation = self._private.gradient_noise(0) * scale / math.sqrt(how.shared_steps)
            update = self._noised(torch.zeros_like(update), deviation, "silent").to(update)
            norm = update[:, norm_layer].norm(dim=1).double()
        loss = report.loss if self._private.terms.loss_share > 0 else torch.ones_like(report.loss)
        numbers = self._network.vector[norm_layer].numel()
        corrected = self._private.norm_of(float(norm), numbers)
        return Report(update, loss, torch.full_like(norm, corrected))

    def first_loss(self, networks: Tensor, row: Row) -> float:
        """F_0 over all examples, with noise."""
        private, (x, y) = self._private, self._private.data
        self._load(networks, row)
        deviation = FIRST * private.noise * private.bound
        noised = float(self._noised(_one(self._losses(x, y)), deviation, "first"))
        return min(max(noised / len(x), FLOOR * private.bound), private.bound)

    def _load(self, networks: Tensor, row: Row) -> Parameters:
        """Let network and head hold these numbers; the head's parameters by name."""
        self._network.vector.copy_(networks[0])
        heads = {name: view[0] for name, view in self._own.views(row[OWN]).items()}
        for name, parameter in self._head.named_parameters():
            if f"head.{name}" in heads:
                parameter.data = heads[f"head.{name}"]
        return heads

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Each example with probability q, drawn once per step."""
        x, y = self._private.data
        if step not in self._batches:
            rows = self._source.chosen(len(x), self._private.rate, "batch", step)
            self._batches[step] = torch.from_numpy(rows).to(x.device)
        return x[self._batches[step]], y[self._batches[step]]

    def _noised(self, total: Tensor, deviation: float, *label: object) -> Tensor:
        noised = self._source.noised(total.cpu().numpy(), deviation, *label)
        return torch.from_numpy(noised).to(total.device)

    def _gradient(
        self, phase: str, step: int, parameters: Parameters, network: nn.Module | None, x: Tensor,
        y: Tensor,
    ) -> tuple[Tensor, Clipped]:  # fmt: skip
        """A noisy mean gradient of a batch as one vector, and the sums it comes from."""
        private = self._private
        rows = RowGradients(row_loss(self._task, network, self._head), private.mapped)
        sums = rows.clipped(parameters, x, y, private.terms.clip, private.bound)
        deviation = private.gradient_noise(step) * private.terms.clip
        noised = self._noised(sums.gradient, deviation, phase, step)
        return (noised / private.batch).to(self._network.vector.dtype), sums

    def _noisy_loss(self, total: float, step: int) -> float:
        """The batch's mean loss with noise, from 0 to the largest that counts."""
        private = self._private
        if not private.terms.loss_share:
            return 0.0
        deviation = private.loss_noise * private.bound
        noised = self._noised(_one(total), deviation, "loss", step)
        return min(max(float(noised) / private.batch, 0.0), private.bound)

    @torch.no_grad()
    def _losses(self, x: Tensor, y: Tensor) -> float:
        """The sum of the examples' clipped losses, with network and head as they are.

        A custom loss sees one example at a time: it may make each loss of all examples.
        """
        if not len(x):
            return 0.0
        bound, losses = self._private.bound, torch.zeros(())
        try:
            if not self._task.has_own_loss:
                losses = self._task.losses(predict(self._network.module, self._head, x), y)
        except Exception as error:
            log.warning("client %r: losses one by one: %s", self._private.client.name, error)
        if losses.ndim == 0:
            pairs = zip(x.split(1), y.split(1), strict=True)
            losses = torch.stack([self._loss(*pair) for pair in pairs])
        return float(clipped_losses(losses, bound).sum())

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one example; NaN where it fails."""
        try:
            return self._task.loss(predict(self._network.module, self._head, x), y).double()
        except Exception:
            return torch.tensor(math.nan, dtype=torch.float64, device=x.device)


def _one(number: float) -> Tensor:
    return torch.tensor([number], dtype=torch.float64)
