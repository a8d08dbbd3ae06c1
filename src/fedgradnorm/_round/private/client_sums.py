"""Client-level privacy: the sum of a round's updates, each clipped, with noise.

Each of N clients participates in a round with probability q. Client i computes its own multiplier
m_i, and adds m_i g_i, clipped to norm C, to a sum. The server adds normal noise of standard
deviation sigma C to each number of the sum, divides by the fixed q N, and steps along

    u = (sum_i m_i g_i min(1, C / (m_i |g_i|)) + sigma C z) / (q N).

So an additional client moves the sum by at most C. If weights were scaled to sum to N instead, one
client would change all of them, and could move the mean by 2 C.

m_i is 1, a given weight, or that of FedGradNorm's direct rule:
log m_i <- s log m_i + (1 - s) log(r_i^gamma / G_i), whose numbers never leave client i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._launched import asked_for
from fedgradnorm._privacy.noise import Noise, noise_from
from fedgradnorm._privacy.plan import Plan
from fedgradnorm._privacy.terms import ClientPrivacy
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import Equal, GradNorm, Signals, Static, Weighting
from fedgradnorm.weighting._base import normalised, only

REFUSED = {
    "share": ("all", "there is no sum to hide a client in"),
    "heads": ("own", "an average of heads would be revealed in addition to the sum"),
    "weight_per": ("client", "weights by task depend on all clients of the task"),
    "aggregate": ("mean", "the sum is divided by a fixed number"),
    "step_with": ("new", "the previous round's weights are known to nobody"),
    "keep": ("last", "the choice of a round would depend on all clients' data, without noise"),
    "patience": (None, "when the run ends would depend on all clients' data, without noise"),
    "ditto": (0.0, "only the shared network has noise"),
}


def plan_of_clients(settings: Settings, rounds: int) -> Plan:
    """What a run with client-level privacy releases: a sum per round."""
    return Plan(_rate(settings), 1, rounds)


class ClientSums:
    """The noisy sums of one federation, and its clients' multipliers."""

    def __init__(
        self, terms: ClientPrivacy, names: Sequence[str], weighting: Weighting, settings: Settings
    ) -> None:
        check_client_level(settings, weighting)
        terms.check_delta(len(names), "clients")
        self.terms, self.weighting, self.rate = terms, weighting, _rate(settings)
        self.names, self.count, self.noise = list(names), len(names), 0.0
        self._noise = _noise(terms, settings.seed)
        self.log_level = torch.zeros(len(names), dtype=torch.float64)
        self.started = torch.zeros(len(names), dtype=torch.bool)

    def drawn(self, round_number: int) -> list[str]:
        """The clients of a round, each drawn independently with the same probability."""
        rows = self._noise.chosen(self.count, self.rate, "who", round_number)
        return [self.names[row] for row in rows]

    def direction(self, updates: Tensor, own: Tensor, round_number: int) -> Tensor:
        """The direction of the server's step; ``own`` is each row's m, 0 for absent clients."""
        numbers = clipped(updates, own, self.terms.clip).sum(dim=0).cpu().numpy()
        deviation = self.noise * self.terms.clip
        noised = torch.from_numpy(self._noise.noised(numbers, deviation, "sum", round_number))
        return (noised / (self.rate * self.count)).to(updates)

    def multipliers(self, signals: Signals) -> Tensor:
        """m of each active row, from its own numbers alone; 0 for the others."""
        rule = self.weighting
        if not isinstance(rule, GradNorm):
            return only(signals.active, rule.weigh(signals))
        norm = signals.grad_norm.double()
        usable = signals.active & (norm > 0)
        log_q = rule.log_fixed_point(norm, signals.loss_ratio.double())
        s = rule.smoothing * self.started.to(norm)
        moved = s * self.log_level.to(norm) + (1 - s) * log_q
        self.log_level = torch.where(usable, moved, self.log_level.to(norm))
        self.started = self.started.to(usable.device) | usable
        return only(usable, self.log_level.exp())

    def server_step(self, server: ServerState, reports: Reports, round_number: int) -> Tensor:
        """Step along the noisy sum; normalized weights, for the history."""
        signals = reports.signals(self.weighting.needs).among(self.count)
        own = self.multipliers(signals)
        weights = self.weighting.weight.to(own.device)
        self.weighting.weight.copy_(normalised(own, signals.active, otherwise=weights))
        here = own if reports.rows is None else own[reports.rows]
        server.step(self.direction(reports.gradients(), here, round_number))
        return self.weighting.weight

    def state_dict(self) -> dict[str, Any]:
        return {"log_level": self.log_level.tolist(), "started": self.started.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.log_level = torch.tensor(state["log_level"], dtype=torch.float64)
        self.started = torch.tensor(state["started"], dtype=torch.bool)


def clipped(updates: Tensor, own: Tensor, clip: float) -> Tensor:
    """m_i g_i, each row no longer than ``clip``; 0 where the product is not finite."""
    rows = own[:, None] * torch.where(own[:, None] > 0, updates.double(), 0)
    shortened: Tensor = rows * (clip / rows.norm(dim=1).clamp_min(clip))[:, None]
    return torch.where(shortened.isfinite().all(dim=1, keepdim=True), shortened, 0)


def check_client_level(settings: Settings, weighting: Weighting) -> None:
    """A ConfigError if anything but the noisy sum would reveal something about a client."""
    for name, (allowed, why) in REFUSED.items():
        value = getattr(settings, name)
        if value != allowed:
            raise ConfigError(
                f"privacy of clients, and {name} = {value!r}: {why}; leave it at {allowed!r}"
            )
    direct = isinstance(weighting, GradNorm) and weighting.rule == "direct"
    if not direct and type(weighting) not in (Equal, Static):
        raise ConfigError(
            "privacy of clients goes with weights that a client knows by itself: Equal(), "
            f"Static(...) or GradNorm(rule='direct'), not {type(weighting).__name__}; with others "
            "one client changes all weights"
        )
    if not isinstance(settings.participation, (int, float)):
        raise ConfigError(
            "privacy of clients draws each client by chance: give participation a share, such as "
            "0.1, not a list"
        )


def client_sums(
    clients: Sequence[Client], weighting: Weighting, settings: Settings
) -> ClientSums | None:
    """The noisy sums of these clients; None without client-level privacy."""
    terms = settings.client_privacy
    if terms is None:
        return None
    for client in clients:
        if client.of is not None:
            raise ConfigError(
                f"privacy of clients, and client {client.of!r} has several tasks: it would be in a "
                "sum once for each; make a client of each task"
            )
    return ClientSums(terms, [client.name for client in clients], weighting, settings)


def _rate(settings: Settings) -> float:
    share = settings.participation
    return float(share) if isinstance(share, (int, float)) else math.nan


def _noise(terms: ClientPrivacy, seed: int) -> Noise:
    if not terms.seeded and asked_for() > 1:
        raise ConfigError(
            f"server.privacy: {asked_for()} processes would each draw other noise for the same "
            "sum; run in one process"
        )
    return noise_from(terms.noise, seed).of("clients")
