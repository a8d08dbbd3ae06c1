"""Weights from the clients' losses, and for ExcessMTL from their gradient norms.

F_i is a client's loss in this round, F_i0 its first one and G_i its gradient norm. Each method
gives p_i up to a common factor; the base class makes the active weights sum to their number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import bounded, whole
from fedgradnorm.weighting._base import (
    MOMENTS,
    SMALLEST,
    Needs,
    Signals,
    Weighting,
    active_mean,
    adam,
    draw,
    from_log,
    only,
    onto_simplex,
    safe_log,
)

TINY_LOSS = 1e-8  # keeps the logarithm of a loss of zero finite, as in the authors' code of FAMO


class ByLog(Weighting):
    """Weights whose logarithm depends on the client's own signals alone, up to a constant."""

    beyond_sums = ""

    @abstractmethod
    def log_weight(self, signals: Signals) -> Tensor:
        """The logarithm, per row."""

    def weigh(self, signals: Signals) -> Tensor:
        """The exponential, relative to the largest active row."""
        return from_log(self.log_weight(signals), signals.active)


class InverseFirstLoss(Weighting):
    """p_i = 1 / F_i0: every task starts with the same weighted loss; then the weights stay.

    The server needs one number per client, once: F_i0 = loss / loss_ratio.
    Source: the usual normalization by the initial loss; a strong simple baseline.
    """

    needs = Needs.LOSS
    beyond_sums = ""
    losses: ClassVar[tuple[str, ...]] = ("loss", "loss_ratio")
    starts: ClassVar[Mapping[str, float]] = {"first_loss": 0.0}

    def weigh(self, signals: Signals) -> Tensor:
        """1 / F_i0, and the mean of the others for a client without a usable first loss."""
        first, active = self.rows["first_loss"], signals.active
        seen = signals.loss.double() / signals.loss_ratio.double()
        usable = active & (first == 0) & torch.isfinite(seen) & (seen > 0)
        first.copy_(torch.where(usable, seen, first))
        known = active & (first > 0)
        log_weight = -safe_log(first, known)
        return from_log(torch.where(known, log_weight, active_mean(log_weight, known)), active)


class GeometricMean(ByLog):
    """p_i = 1 / F_i: the gradient of the geometric mean of the losses, (prod_i F_i)^(1/N).

    Source: Chennupati et al., "MultiNet++: Multi-stream feature aggregation and geometric loss
    strategy for multi-task learning" (2019), arXiv 1904.08492.
    """

    needs = Needs.LOSS

    def log_weight(self, signals: Signals) -> Tensor:
        """-log F_i."""
        return -safe_log(signals.loss, signals.active)


class QFFL(ByLog):
    """p_i = F_i^q: the gradient of sum_i F_i^(q+1) / (q+1), so that large losses count more.

    ``q`` = 0 weighs everybody the same; the larger, the nearer to minimizing the largest loss.
    The length of the step is the server optimizer's, not q-FedSGD's estimate from L and q.
    Source: Li, Sanjabi, Beirami, Smith, "Fair resource allocation in federated learning" (2020),
    arXiv 1905.10497, equation 2, with equal shares of the clients.

    Args:
        q: exponent of the loss, 0 or more; larger values favor clients with large losses.
    """

    needs = Needs.LOSS

    def __init__(self, q: float = 1.0) -> None:
        super().__init__()
        self.q = bounded("q-FFL's q", q)

    def log_weight(self, signals: Signals) -> Tensor:
        """q log F_i."""
        return self.q * safe_log(signals.loss, signals.active)


class Tchebycheff(ByLog):
    r"""p_i = r_i^(1/mu) / F_i: the task with the largest remaining share of its loss counts most.

    The gradient of the smooth Tchebycheff scalarization

    .. math:: \mu \log \sum_i e^{f_i / \mu}, \qquad f_i = \log (F_i / F_i^0) = \log r_i .

    As ``mu`` goes to 0 only the worst task counts; mu = 1 is :class:`InverseFirstLoss`, and mu to
    infinity :class:`GeometricMean`.
    Source: Lin, Zhang, Yang, Liu, Wang, Zhang, "Smooth Tchebycheff scalarization for
    multi-objective optimization" (2024), arXiv 2402.19078, applied to logarithmic losses, with
    equal preferences and the first loss as the unit of each loss.

    Args:
        mu: the smoothness, above 0.
    """

    needs = Needs.LOSS
    losses: ClassVar[tuple[str, ...]] = ("loss", "loss_ratio")

    def __init__(self, mu: float = 0.5) -> None:
        super().__init__()
        self.mu = bounded("Tchebycheff's mu", mu, above=True)

    def log_weight(self, signals: Signals) -> Tensor:
        """log r_i / mu - log F_i."""
        ratio = safe_log(signals.loss_ratio, signals.active)
        return ratio / self.mu - safe_log(signals.loss, signals.active)


class AFL(Weighting):
    """The worst mixture of the clients: lambda steps up the losses, p_i = N lambda_i.

        lambda <- nearest point of the simplex to lambda + loss_lr F

    Weights may be zero, and ``loss_lr`` is in units of 1 / loss: both are the method's own. The
    network's step takes the new lambda, the paper's the one before (``step_with="previous"``).
    Source: Mohri, Sivek, Suresh, "Agnostic federated learning" (2019), arXiv 1902.00146,
    stochastic AFL.

    Args:
        loss_lr: learning rate of the mixture of clients, 0 or more.
    """

    needs = Needs.LOSS
    starts: ClassVar[Mapping[str, float]] = {"level": 1.0}
    positive = False
    beyond_sums = "all clients' losses at once, to project their mixture"

    def __init__(self, loss_lr: float = 0.01) -> None:
        super().__init__()
        self.loss_lr = bounded("AFL's loss_lr", loss_lr)

    def weigh(self, signals: Signals) -> Tensor:
        """The active clients' mixture after one projected step up."""
        active, level = signals.active, self.rows["level"]
        now = torch.where(active, level, 0)
        mixture = torch.where(now.sum() > 0, now / now.sum(), 1 / active.sum())
        loss = torch.where(active, signals.loss.double(), 0)
        moved = onto_simplex(mixture + self.loss_lr * loss, active)
        share = torch.where(now.sum() > 0, now.sum(), active.sum().double())
        return level.copy_(torch.where(active, moved * share, level))  # all levels sum to N


class RandomWeights(Weighting):
    """RLW: p is the softmax of numbers drawn afresh from N(0, 1) in every round.

    What a client draws is decided by the run's seed, its name, and in how many rounds it has
    participated.
    Source: Lin, Ye, Zhang, Tsang, "Reasonable effectiveness of random weighting: A litmus test for
    multi-task learning" (2022), arXiv 2111.10603, algorithm 2, with its normal distribution.
    """

    starts: ClassVar[Mapping[str, float]] = {"rounds": 0.0}
    beyond_sums = ""
    capturable = False

    def weigh(self, signals: Signals) -> Tensor:
        """exp of the clients' own draws."""
        counts = self.rows["rounds"].tolist()
        drawn = [
            draw(self.run_seed, name, int(count)).gauss(0, 1)
            for name, count in zip(self.clients, counts, strict=True)
        ]
        self.rows["rounds"] += signals.active
        return torch.tensor(drawn, dtype=torch.float64, device=signals.active.device).exp()


class DWA(ByLog):
    """Dynamic weight average: who has lately improved least counts most.

        p_i = exp(rate_i / T),   rate_i = (last average of F_i) / (the average before)

    An average is over ``every`` rounds of a client (the paper's epoch). Until a client has two of
    them its rate is 1.
    Source: Liu, Johns, Davison, "End-to-end multi-task learning with attention" (2019),
    arXiv 1803.10704, equation 7, T = 2 as there.

    Args:
        temperature: temperature of the softmax, above 0; larger values make weights more alike.
        every: number of a client's rounds whose losses are averaged, 1 or more.
    """

    needs = Needs.LOSS
    starts: ClassVar[Mapping[str, float]] = dict.fromkeys(
        ("total", "count", "newer", "older", "averages"), 0.0
    )

    def __init__(self, temperature: float = 2.0, every: int = 50) -> None:
        super().__init__()
        self.temperature = bounded("DWA's temperature", temperature, above=True)
        self.every = whole("DWA's every", every, 1)

    def log_weight(self, signals: Signals) -> Tensor:
        """rate_i / T with the averages from before this round."""
        limits, rows = torch.finfo(torch.float64), self.rows
        rate = (rows["newer"] / rows["older"].clamp_min(limits.tiny)).clamp_max(limits.max)
        rate = torch.where(rows["averages"] >= 2, rate, 1)
        active = signals.active
        rows["total"] += torch.where(active, signals.loss.double(), 0)
        rows["count"] += active
        full = active & (rows["count"] >= self.every)
        mean = rows["total"] / rows["count"].clamp_min(1)
        rows["older"].copy_(torch.where(full, rows["newer"], rows["older"]))
        rows["newer"].copy_(torch.where(full, mean, rows["newer"]))
        rows["averages"] += full
        rows["total"].mul_(~full)
        rows["count"].mul_(~full)
        return rate / self.temperature


class Uncertainty(ByLog):
    """Uncertainty weighting: s_i is the log-variance of client i's task.

        minimize over s:  sum_i 1/2 exp(-s_i) F_i + 1/2 s_i,     p_i = exp(-s_i)

    s is the server's and takes one Adam step (``scale_lr``) a round; at its limit p_i = 1 / F_i.
    Every task has the regression's form (equation 7), as is usual; the paper's equation 10 counts
    a classification twice, which would only double its weight.
    Source: Kendall, Gal, Cipolla, "Multi-task learning using uncertainty to weigh losses for scene
    geometry and semantics" (2018), arXiv 1705.07115, with the log-variance learned, as they advise.

    Args:
        scale_lr: Adam's learning rate for the log scales s, 0 or more.
    """

    needs = Needs.LOSS
    starts: ClassVar[Mapping[str, float]] = {"log_scale": 0.0, **MOMENTS}
    sign: ClassVar[int] = -1
    factor: ClassVar[float] = 0.5

    def __init__(self, scale_lr: float = 0.01) -> None:
        super().__init__()
        self.scale_lr = bounded(f"{type(self).__name__}'s scale_lr", scale_lr)

    def log_weight(self, signals: Signals) -> Tensor:
        """-s_i, after one step on s."""
        active, s = signals.active, self.rows["log_scale"]
        loss = torch.where(active, signals.loss.double(), 1)
        # With u = -s (UW) or u = s (IMTL-L): d/du of exp(u) F - u is exp(u) F - 1.
        gradient = self.sign * self.factor * ((self.sign * s).exp() * loss - 1)
        s.copy_(torch.where(active, s - adam(self.rows, gradient, active, self.scale_lr), s))
        self.rows["steps"] += active
        return self.sign * s


class IMTLL(Uncertainty):
    """IMTL-L: s_i rescales client i's loss so that all losses become one size.

        minimize over s:  sum_i exp(s_i) F_i - s_i,     p_i = exp(s_i)

    This is twice uncertainty weighting's objective with the sign of s turned, so Adam makes the two
    the same. Both are here because published tables have both.
    Source: Liu, Li, Kuang et al., "Towards impartial multi-task learning" (2021), equation 6.

    Args:
        scale_lr: Adam's learning rate for the log scales s, 0 or more.
    """

    sign = 1
    factor = 1.0


class FAMO(Weighting):
    """Fast adaptive multitask optimization.

        p_i = z_i / F_i,   z = softmax(w),   w <- Adam step (logit_lr, decay) along J_z^T delta,
        delta_i = log(F_i before the step) - log(F_i after it)

    The paper evaluates F twice on one batch, before and after the network's step. A federated
    server sees one loss a round, so delta_i is between a client's last two rounds.
    ``decay`` is the paper's 1e-3; the authors' code has 1e-5.
    Source: Liu, Feng, Stone, Liu, "FAMO: Fast adaptive multitask optimization" (2023),
    arXiv 2306.03792, algorithm 1 and equations 10 to 12.

    Args:
        logit_lr: Adam's learning rate for the logits of the weights, 0 or more.
        decay: weight decay of the logits, 0 or more.
    """

    needs = Needs.LOSS
    starts: ClassVar[Mapping[str, float]] = {"logit": 0.0, "last": 0.0, "rounds": 0.0, **MOMENTS}
    beyond_sums = "all clients' logits at once, for their softmax"

    def __init__(self, logit_lr: float = 0.025, decay: float = 1e-3) -> None:
        super().__init__()
        self.logit_lr = bounded("FAMO's logit_lr", logit_lr)
        self.decay = bounded("FAMO's decay", decay)

    def weigh(self, signals: Signals) -> Tensor:
        """z_i / F_i, with z stepped by what the last step did to the losses."""
        active, rows = signals.active, self.rows
        w, live = rows["logit"], active & (rows["rounds"] > 0)
        log_loss = (torch.where(active, signals.loss.double(), 1) + TINY_LOSS).log()
        z = torch.where(live, w, -torch.inf).softmax(0).nan_to_num(0)
        delta = torch.where(live, rows["last"] - log_loss, 0)
        gradient = z * (delta - (z * delta).sum()) + self.decay * w
        w.copy_(torch.where(live, w - adam(rows, gradient, live, self.logit_lr), w))
        rows["steps"] += live
        rows["last"].copy_(torch.where(active, log_loss, rows["last"]))
        rows["rounds"] += active
        return from_log(w - log_loss, active)


class ExcessMTL(ByLog):
    r"""Tasks that are furthest from their own optimum count most; noise in labels adds nothing.

    .. math:: p_i \leftarrow p_i \exp(\eta \, E_i / E_i^0), \qquad
              E_i = G_i^2 / \sqrt{\textstyle\sum_t G_i(t)^2}

    E_i is the paper's second-order estimate g^T H^-1 g of the excess risk, with H from the squared
    gradients so far. The paper has a curvature per parameter; here a client has one for its norm
    layer, so it sends one number. The first round leaves the weights alone, as in the paper; a
    ratio above 100 counts as 100.
    Source: He, Zhou, Zhang, Yun, Xu, Zeng, Chilimbi, Zhao, "Robust multi-task learning with excess
    risks" (2024), arXiv 2402.02009, algorithm 1.

    Args:
        step: step size of the weights (eta), 0 or more.
    """

    needs = Needs.NORM
    starts: ClassVar[Mapping[str, float]] = {"log_weight": 0.0, "length": 0.0, "first": 0.0}

    def __init__(self, step: float = 0.01) -> None:
        super().__init__()
        self.step = bounded("ExcessMTL's step", step)

    def log_weight(self, signals: Signals) -> Tensor:
        """The logarithm after this round's multiplicative step."""
        rows, norm = self.rows, only(signals.active, signals.grad_norm)
        known = rows["first"] > 0
        live = signals.active & (norm > 0)
        length = torch.where(live, torch.hypot(rows["length"], norm), rows["length"])
        ratio = (norm / torch.where(known, rows["first"], 1)) * (norm / length.clamp_min(1e-300))
        step = self.step * ratio.clamp_max(100.0)  # so that one round cannot decide all later ones
        rows["log_weight"] += torch.where(live & known, step, 0)
        rows["length"].copy_(length)
        rows["first"].copy_(torch.where(live & ~known, norm, rows["first"]))
        return rows["log_weight"]


class GO4Align(Weighting):
    r"""One weight per group of tasks, the mean of its tasks' risk indicators.

    .. math:: u_i = q_i \sum_j F_j / F_i, \qquad q_i \leftarrow q_i \, e^{-\beta F_i}, \qquad
              p_i = \text{mean of } u \text{ over the group of } i

    K-means on the numbers u makes the groups in each round. It starts at their quantiles, so
    groups do not depend on chance or on the order of clients.
    Source: Shen, Wang, Xiao, Van Noord, Worring, "GO4Align: Group optimization for multi-task
    alignment" (2024), arXiv 2404.06486; scale balance, smoothing and defaults as in their code.

    Args:
        groups: number of groups, 1 or more; with 1, all weights are equal.
        beta: how fast large losses lower a task's weight, 0 or more.
    """

    needs = Needs.LOSS
    starts: ClassVar[Mapping[str, float]] = {"log_share": 0.0}
    beyond_sums = "all clients' losses at once, to group them"
    capturable = False

    def __init__(self, groups: int = 2, beta: float = 1e-4) -> None:
        super().__init__()
        self.groups = whole("GO4Align's groups", groups, 1)
        self.beta = bounded("GO4Align's beta", beta)

    def weigh(self, signals: Signals) -> Tensor:
        active, share = signals.active, self.rows["log_share"]
        loss = torch.where(active, signals.loss.double(), 0)
        share -= self.beta * loss.clamp(0, 1e12)
        indicator = from_log(share - safe_log(signals.loss, active), active)
        weight = torch.ones_like(indicator)
        weight[active] = group_means(indicator[active], self.groups).clamp_min(SMALLEST)
        return weight


def group_means(values: Tensor, groups: int) -> Tensor:
    """Each value's group mean, for groups by K-means in one dimension (Lloyd 1982).

    >>> group_means(torch.tensor([1.0, 9.0, 2.0, 11.0]), 2).tolist()
    [1.5, 10.0, 1.5, 10.0]
    """
    count = min(groups, len(values))
    places = (torch.arange(count, dtype=values.dtype) + 0.5) / count
    centers = torch.quantile(values, places.to(values.device))
    group = torch.full_like(values, -1, dtype=torch.long)
    for _ in range(300):  # a GPU may add in another order each time, and never settle
        nearest = (values[:, None] - centers).abs().argmin(1)
        if torch.equal(nearest, group):
            break
        group = nearest
        members = torch.zeros_like(centers).index_add_(0, group, torch.ones_like(values))
        sums = torch.zeros_like(centers).index_add_(0, group, values)
        centers = torch.where(members > 0, sums / members.clamp_min(1), centers)
    return centers[group]
