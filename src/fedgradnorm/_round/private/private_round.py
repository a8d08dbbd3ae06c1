"""A private client's round: the same phases, with clipped sums and noise instead of gradients.

Each step s draws one batch in which every row is with chance q = b / n (Poisson), for a batch size
b and n rows. From it are taken, one after the other, the head's gradient, the shared network's and
the loss, as in the round of any other client. Each is a sum over rows, of gradients clipped to C
or of losses clipped to L, with normal noise, over b:

    (sum_i g_i min(1, C / |g_i|) + sigma_g C z) / b,    (sum_i min(l_i, L) + sigma_l L z) / b.

Normal noises on one batch add up as 1 / sigma^2 = sum_j 1 / sigma_j^2, whatever a later one makes
of an earlier one's outcome. The loss has the part a of that (``loss_share``), its u gradients have
the rest in equal parts: sigma_l = sigma / sqrt(a), sigma_g = sigma sqrt(u / (1 - a)). So a step
costs as much as one sum with noise multiplier sigma. With ``schedule="together"`` head and network
are one gradient, clipped together, and u = 1.

The head's steps have noise too: one row in a head without noise would change every other row's
gradient of the shared network, and no clipping would bound that.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._privacy.budget import FIRST
from fedgradnorm._privacy.per_example import Clipped, Parameters, RowGradients, named, row_loss
from fedgradnorm._round.client_round import Report, first_loss
from fedgradnorm._round.client_state import ClientState
from fedgradnorm._round.evaluation import predict
from fedgradnorm._round.private.private_client import PrivateClient

FLOOR = 0.05  # of the largest loss that counts: no first loss is less, so that no ratio is absurd


def private_round(
    private: PrivateClient, state: ClientState, shared: Tensor, gauge: Tensor, round_number: int
) -> Report:
    """One round, see :func:`fedgradnorm._round.client_round.local_round`."""
    return _Round(private, state, shared, gauge, round_number).run()


class _Round:
    """The work of one round."""

    def __init__(
        self,
        private: PrivateClient,
        state: ClientState,
        shared: Tensor,
        gauge: Tensor,
        round_number: int,
    ) -> None:
        self.private, self.state, self.shared, self.gauge = private, state, shared, gauge
        self.how, self.task, self.network = private.how, private.client.task, private.network
        self._chance = private.chance_of(state, shared, round_number)

    def run(self) -> Report:
        """Head phase, shared phase, and what is told of them."""
        state, how, network = self.state, self.how, self.network
        network.vector.copy_(self.shared)
        if network.has_buffers:
            network.load_buffers(state.buffers)
        network.module.train()
        state.head.train()
        tells_loss = self.private.terms.loss_share > 0
        if state.first_loss is None and tells_loss and how.first_loss != "first_round":
            state.first_loss = self._first_loss()
        if not how.together:
            for step in range(how.head_steps):
                self._head_step(step)
        gradient, update, loss = self._shared_phase()
        if not tells_loss:
            state.first_loss = loss = 1.0
        elif state.first_loss is None:
            state.first_loss = max(loss, FLOOR * self.private.bound)
        state.rounds += 1
        assert state.first_loss is not None
        norm = self.private.norm_of(gradient, self.gauge)
        return Report(update, loss, loss / state.first_loss, norm)

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Each row with chance q."""
        x, y = self.private.data
        rate = self.private.budget.rate
        rows = torch.from_numpy(self._chance.chosen(len(x), rate, "batch", step))
        return x[rows.to(x.device)], y[rows.to(y.device)]

    def _noised(self, total: Tensor, deviation: float, *label: object) -> Tensor:
        noised = self._chance.noised(total.cpu().numpy(), deviation, *label)
        return torch.from_numpy(noised).to(total.device)

    def _gradient(
        self, phase: str, step: int, parameters: Parameters, network: nn.Module | None, x: Tensor,
        y: Tensor,
    ) -> tuple[Tensor, Clipped]:  # fmt: skip
        """A noisy mean gradient of a batch as one vector, and the sums it comes from."""
        private = self.private
        rows = RowGradients(row_loss(self.task, network, self.state.head), private.mapped)
        sums = rows.clipped(parameters, x, y, private.terms.clip, private.bound)
        deviation = private.gradient_noise(step) * private.terms.clip
        noised = self._noised(sums.gradient, deviation, phase, step)
        return (noised / private.batch).to(self.shared.dtype), sums

    def _head_step(self, step: int) -> None:
        x, y = self._batch(step)
        with torch.no_grad():
            features = self.network.module(x) if len(x) else x
        parameters = named(self.state.head, "head")
        gradient, _ = self._gradient("head", step, parameters, None, features, y)
        self._step_head(gradient)

    def _step_head(self, gradient: Tensor) -> None:
        """A step of the head's optimiser along a vector."""
        start = 0
        for parameter in self.state.head.parameters():
            if parameter.requires_grad:
                stop = start + parameter.numel()
                parameter.grad = gradient[start:stop].view_as(parameter).clone()
                start = stop
        self.state.optimizer.step()

    def _shared_phase(self) -> tuple[Tensor, Tensor, float]:
        """Mean noisy gradient, the update to send, and the mean noisy loss."""
        how, network = self.how, self.network
        assert how.local_optimizer is not None
        local = nn.Parameter(network.vector)
        local.grad = network.gradient
        optimizer = optimizers.build([local], how.local_optimizer)
        mean, pull = torch.zeros_like(network.vector), torch.zeros_like(network.vector)
        loss = 0.0
        for step in range(how.shared_steps):
            x, y = self._batch(step)
            parameters = named(network.module, "network")
            if how.together:
                parameters |= named(self.state.head, "head")
            gradient, sums = self._gradient("shared", step, parameters, network.module, x, y)
            network.gradient.copy_(gradient[: len(network.vector)])
            mean += network.gradient / how.shared_steps
            back = how.proximal * (network.vector - self.shared)
            network.gradient += back
            pull += back / how.shared_steps
            if how.steps_locally:
                optimizer.step()
            if how.together:
                self._step_head(gradient[len(network.vector) :])
            total = sums.loss if how.report_loss == "before" else self._losses(x, y)
            loss += self._told_loss(total, step) / how.shared_steps
        return mean, self._update(mean + pull), loss

    def _update(self, gradient: Tensor) -> Tensor:
        """What is sent: the mean gradient, or the way of the local copy."""
        how = self.how
        if how.update == "gradient":
            return gradient
        way = self.shared - self.network.vector
        assert how.local_optimizer is not None
        return (
            way / (how.shared_steps * how.local_optimizer["lr"]) if how.update == "delta" else way
        )

    def _told_loss(self, total: float, step: int) -> float:
        """The batch's mean loss with noise, from 0 to the largest that counts."""
        private = self.private
        if not private.terms.loss_share:
            return 0.0
        deviation = private.loss_noise * private.bound
        noised = self._noised(_one(total), deviation, "loss", step)
        return min(max(float(noised) / private.batch, 0.0), private.bound)

    def _first_loss(self) -> float:
        """F_0, with noise where it is that of all rows."""
        private, (x, y) = self.private, self.private.data
        if self.how.first_loss == "log_classes":
            given = (self.task, self.state, self.network, private.data, self.how.first_loss)
            return first_loss(*given)
        deviation = FIRST * private.budget.noise * private.bound
        noised = float(self._noised(_one(self._losses(x, y)), deviation, "first"))
        return min(max(noised / len(x), FLOOR * private.bound), private.bound)

    @torch.no_grad()
    def _losses(self, x: Tensor, y: Tensor) -> float:
        """The sum of the rows' clipped losses, with the network as it is."""
        if not len(x):
            return 0.0
        bound, output = self.private.bound, predict(self.network.module, self.state.head, x)
        losses = self.task.losses(output, y)
        if losses.ndim == 0:  # a loss that joins rows: one row at a time
            pairs = zip(output.split(1), y.split(1), strict=True)
            losses = torch.stack([self.task.loss(*pair) for pair in pairs])
        losses = losses.double().nan_to_num(nan=bound, posinf=bound, neginf=0.0)
        return float(losses.clamp(0.0, bound).sum())


def _one(number: float) -> Tensor:
    return torch.tensor([number], dtype=torch.float64)
