"""A private client: what it has promised, how much noise that takes, and where it is from."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.per_example import check_rows
from fedgradnorm._privacy.randomness import Chance, secret_key, seed_key
from fedgradnorm._privacy.terms import SEED
from fedgradnorm._round.local_update import LocalSpec
from fedgradnorm._round.private.private_plan import budget_of, loss_bound
from fedgradnorm.models._flat import FlatNetwork


class PrivateClient:
    """One private client: its rows, its account and its chance; ``network`` is a scratch copy."""

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
        self.budget = budget_of(client, how, batch_size)
        self.batch = self.budget.rate * client.size
        secret = self.terms.secret
        self._secret = secret not in (None, SEED)
        key = secret_key(Path(str(secret)).expanduser()) if self._secret else seed_key(seed)
        self._chance = Chance(key)
        self.bound = loss_bound(client.task, self.terms)
        x, y = data
        try:
            self.mapped = check_rows(client.task, network.module, head, x[:2], y[:2])
        except ConfigError as error:
            raise ConfigError(f"client {client.name!r} has privacy: {error}") from None

    def uses(self, step: int) -> int:
        """How many gradients are taken from the batch of this step."""
        if self.how.together:
            return 1
        return (step < self.how.head_steps) + (step < self.how.shared_steps)

    def gradient_noise(self, step: int) -> float:
        """sigma_g of this step."""
        told = self.terms.loss_share if step < self.how.shared_steps else 0.0
        return self.budget.noise * math.sqrt(self.uses(step) / (1 - told))

    @property
    def loss_noise(self) -> float:
        """sigma_l; infinite where no loss is told."""
        share = self.terms.loss_share
        return self.budget.noise / math.sqrt(share) if share else math.inf

    def norm_of(self, measured: float, numbers: int) -> float:
        """The gradient norm of a mean of noisy gradients, which costs nothing more.

        ``measured`` is the norm of ``numbers`` numbers. The noise has the expected square length
        d s^2, for d numbers with standard deviation s. ``corrected`` takes that away, and leaves at
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

    def chance_of(self, own: Tensor, rounds: int, shared: Tensor, round_number: int) -> Chance:
        """What decides this round's batches and noise.

        A secret is used with everything that the answer depends on. The same question then gets
        the same answer, and another question, of the same round, gets other noise.
        """
        label: list[object] = [self.client.name, round_number]
        if self._secret:
            label.append(question(own, rounds, shared, round_number))
        return self._chance.of(*label)


def question(own: Tensor, rounds: int, shared: Tensor, round_number: int) -> str:
    """A name for all that a client's answer depends on, besides its examples and its noise.

    ``own`` are its own parameters, after so many ``rounds`` in which it took part.
    """
    digest = hashlib.blake2b(f"{round_number} {rounds} ".encode(), digest_size=16)
    for part in (shared, own):
        digest.update(part.detach().cpu().contiguous().reshape(-1).numpy().tobytes())
    return digest.hexdigest()
