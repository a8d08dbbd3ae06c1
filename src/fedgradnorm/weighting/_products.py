"""Weights from the N x N matrix of the updates' inner products.

G is that matrix, g_i client i's update. :class:`GramWeighting` has what a federation needs around a
solver: clients by name, who is absent, who has no gradient. :class:`TorchJD` adds the rules of
TorchJD, an optional dependency that is imported when one of these is made.
"""

from __future__ import annotations

import logging
import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._checks import bounded, one_of, whole
from fedgradnorm._errors import ConfigError
from fedgradnorm.weighting._base import (
    VANISHED,
    Needs,
    Signals,
    Weighting,
    draw,
    onto_simplex,
    private_generator,
)

Floats = NDArray[np.float64]
ScaleMode = Literal["min", "median", "rmse"]

log = logging.getLogger("fedgradnorm")


class GramWeighting(Weighting):
    """A method that is a function of G_ij = update_i . update_j.

    A subclass implements ``solve(gram, names)``. Clients are sorted by name, so that neither
    rounding nor random numbers depend on the order they were bound in. G is divided by a power of
    four near its mean diagonal, so that nothing depends on the units of the losses. A client whose
    update has vanished is left out (its weight is 1 and multiplies nothing) instead of turning the
    whole answer to zero. A single client weighs 1. Where a method has no answer, weights are equal.
    """

    needs = Needs.GRAM
    beyond_sums = "the inner products of the clients' updates"
    starts: ClassVar[Mapping[str, float]] = {"frozen": 0.0}
    capturable = False

    @abstractmethod
    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """A weight for each row of ``gram``, up to a common factor; at least two rows."""

    def weigh(self, signals: Signals) -> Tensor:
        """The method's weights of the clients with a live update, 1 for the others."""
        assert signals.gram is not None
        gram = signals.gram.detach().double().cpu()
        active = signals.active.cpu()
        length = torch.where(active, gram.diagonal(), 0)
        live = active & (length > VANISHED**2 * length.max()) & torch.isfinite(length)
        self.rows["frozen"].copy_(active & ~live)
        weights = torch.ones(len(active), dtype=torch.float64)
        ordered = sorted(live.nonzero().flatten().tolist(), key=lambda row: self.clients[row])
        if len(ordered) > 1:
            names = [self.clients[row] for row in ordered]
            part = gram[ordered][:, ordered]
            part = (part + part.T) / 2  # exactly symmetric, whoever computed it
            found = self.solve(part / unit(part), names).double()
            if torch.isfinite(found).all() and (total := found.sum()) > 0:
                weights[ordered] = found * len(names) / total
            else:
                log.info("%s has no answer for this round; equal weights", type(self).__name__)
        return weights.to(signals.active.device)


def unit(gram: Tensor) -> float:
    """A power of four near the mean of the diagonal: it and its root divide without rounding."""
    mean = float(gram.diagonal().mean())
    return 4.0 ** round(math.log(mean, 4))


def root(gram: Tensor) -> Tensor:
    """R with R R^T = G: N x N numbers that stand for the N updates in all that is about angles."""
    values, vectors = torch.linalg.eigh(gram)
    found: Tensor = vectors * values.clamp_min(0).sqrt()
    return found


def make_rule(name: str, **options: Any) -> Any:
    """TorchJD's class of this name, made; a ConfigError says what to install."""
    try:
        return getattr(import_module("torchjd.aggregation"), name)(**options)
    except ImportError as error:
        raise ConfigError(
            f"{name} comes from TorchJD and its solvers, which are not all here ({error}); "
            "pip install 'fedgradnorm[methods]'"
        ) from error


class TorchJD(GramWeighting):
    """A weighting of TorchJD that takes a Gram matrix, with private randomness.

    ``rule`` is the name of its class, and ``theirs`` what it calls options that have another name.
    """

    positive = False
    rule: ClassVar[str]
    theirs: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__()
        vars(self).update(options)
        self._rule = make_rule(self.rule, **{self.theirs.get(k, k): v for k, v in options.items()})
        self.extra["draws"] = 0

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """The rule's weights, with a generator that belongs to this round."""
        self.extra["draws"] += 1
        bits = draw(self.run_seed, self.extra["draws"]).getrandbits(63)
        generator = private_generator(bits, torch.device("cpu"))
        with torch.no_grad(), warnings.catch_warnings(), generator:
            warnings.simplefilter("ignore")  # solvers' advice on how to state a problem
            return self.apply(gram, names)

    def apply(self, gram: Tensor, names: Sequence[str]) -> Tensor:  # noqa: ARG002
        """The rule itself; methods that remember something about clients do it here."""
        weights: Tensor = self._rule(gram)
        return weights


class UPGrad(TorchJD):
    """Each g_i is projected onto the cone of directions that harm nobody; p sums the projections.

    p = sum_i argmin v^T G v, v >= e_i / N. TorchJD adds 1e-4 of the trace to G's diagonal so that
    the program always has one answer; DualProj too.
    Source: Quinton, Rey, "Jacobian descent for multi-objective optimization" (2024),
    arXiv 2406.16232, proposition 1.
    """

    positive = True
    rule = "UPGradWeighting"


class DualProj(TorchJD):
    """The mean update, projected onto the cone of directions that harm nobody.

    p = argmin v^T G v, v_i >= 1/N.
    Source: Lopez-Paz, Ranzato, "Gradient episodic memory for continual learning" (2017),
    arXiv 1706.08840, equation 11.
    """

    positive = True
    rule = "DualProjWeighting"


class MGDA(TorchJD):
    """The shortest vector in the hull of the updates: p = argmin p^T G p over the simplex.

    By Frank-Wolfe, so weights may be exactly zero. On the means of clients' updates per task
    (``weight_per="task"``) this is also FSMGDA's server step.
    Source: Desideri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization"
    (2012); Sener, Koltun, "Multi-task learning as multi-objective optimization" (2018),
    arXiv 1810.04650, algorithm 2; Yang et al., "Federated multi-objective learning" (2023),
    arXiv 2310.09866.

    Args:
        tolerance: smallest step of the Frank-Wolfe solver before it stops, above 0.
        max_iters: most steps of the Frank-Wolfe solver, 1 or more.
    """

    rule = "MGDAWeighting"
    theirs: ClassVar[Mapping[str, str]] = {"tolerance": "epsilon"}

    def __init__(self, tolerance: float = 1e-3, max_iters: int = 100) -> None:
        super().__init__(
            tolerance=bounded("MGDA's tolerance", tolerance, above=True),
            max_iters=whole("MGDA's max_iters", max_iters, 1),
        )


class PCGrad(TorchJD):
    """Each g_i loses its component against every g_j it conflicts with, in random order.

    Source: Yu et al., "Gradient surgery for multi-task learning" (2020), arXiv 2001.06782,
    algorithm 1.
    """

    positive = True
    rule = "PCGradWeighting"


class GradVac(TorchJD):
    """Each g_i is turned toward g_j until their cosine reaches its running mean phi_ij.

    phi_ij is kept by the pair of names, and moves by ``beta`` a round: 0.5 as in the libraries,
    0.01 in the paper, which also does this for each layer apart and not for whole updates.
    Source: Wang, Tsvetkov, Firat, Cao, "Gradient vaccine: Investigating and improving multi-task
    optimization in massively multilingual models" (2021), arXiv 2010.05874.

    Args:
        beta: rate at which the running mean of the cosines moves, 0 to 1.
    """

    positive = True
    rule = "GradVacWeighting"

    def __init__(self, beta: float = 0.5) -> None:
        super().__init__(beta=bounded("GradVac's beta", beta, 0, 1))
        self.extra["cosines"] = {}

    def apply(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """The rule, with the cosines of the clients that are here."""
        cosines: dict[str, dict[str, float]] = self.extra["cosines"]
        known = [[cosines.get(a, {}).get(b, 0.0) for b in names] for a in names]
        self._rule._phi_t = torch.tensor(known, dtype=gram.dtype)
        self._rule._state_key = (len(names), gram.dtype)
        weights = super().apply(gram, names)
        for a, row in zip(names, self._rule._phi_t.tolist(), strict=True):
            cosines.setdefault(a, {}).update(zip(names, row, strict=True))
        return weights


class CAGrad(TorchJD):
    """The best worst improvement within ``c`` |g_0| of the mean update g_0.

    p = 1/N + (c |g_0| / |g_w|) w,   w = argmin g_w . g_0 + c |g_0| |g_w| over the simplex.
    Source: Liu et al., "Conflict-averse gradient descent for multi-task learning" (2021),
    arXiv 2110.14048, algorithm 1.

    Args:
        c: radius around the mean update, as a multiple of its length, 0 or more.
    """

    positive = True
    rule = "CAGradWeighting"

    def __init__(self, c: float = 0.5) -> None:
        super().__init__(c=bounded("CAGrad's c", c))


class IMTLG(TorchJD):
    """The combination with equal projections on all g_i: p = G^+ d / sum(G^+ d), d_i = |g_i|.

    Weights may be negative. It takes the gradients of the shared network; the paper takes those of
    the network's output instead. The form is TorchJD's, which also holds for dependent updates.
    Source: Liu, Li, Kuang et al., "Towards impartial multi-task learning" (2021), equations 1, 2.
    """

    rule = "IMTLGWeighting"


class AlignedMTL(TorchJD):
    """The principal components of the updates made equally long: p = sqrt(s) V L^(-1/2) V^T 1/N.

    G = V L V^T; ``scale_mode`` says which eigenvalue s is: the least one in the paper. Weights may
    be negative.
    Source: Senushkin et al., "Independent component alignment for multi-task learning" (2023),
    arXiv 2305.19000, algorithm 1.

    Args:
        scale_mode: eigenvalue that all components are scaled to: min, median or rmse.
    """

    rule = "AlignedMTLWeighting"

    def __init__(self, scale_mode: ScaleMode = "min") -> None:
        one_of("Aligned-MTL's scale_mode", scale_mode, get_args(ScaleMode))
        super().__init__(scale_mode=scale_mode)


class FairGrad(TorchJD):
    """alpha-fair improvements: G p = p^(-1/alpha).

    Found by least squares, as in the authors' code.
    Source: Ban, Ji, "Fair resource allocation in multi-task learning" (2024), arXiv 2402.15638,
    equation 4.

    Args:
        alpha: degree of fairness, 0 or more; larger values favor the least improvement.
    """

    positive = True
    rule = "FairGradWeighting"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__(alpha=bounded("FairGrad's alpha", alpha))


class Krum(GramWeighting):
    r"""The update nearest to the N - byzantine - 2 others it is nearest to; ``selected`` of them.

    .. math:: s_i = \sum_{j \to i} |g_i - g_j|^2, \qquad |g_i - g_j|^2 = G_{ii} + G_{jj} - 2 G_{ij}

    The least s_i are selected. With fewer than ``byzantine`` + 3 clients in a round, as many faults
    as their number allows.
    Source: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient
    descent" (2017), arXiv 1703.02757.

    Args:
        byzantine: number of clients that may be faulty, 0 or more.
        selected: number of updates that are averaged, 1 or more.
    """

    positive = False

    def __init__(self, byzantine: int = 1, selected: int = 1) -> None:
        super().__init__()
        self.byzantine = whole("Krum's byzantine", byzantine, 0)
        self.selected = whole("Krum's selected", selected, 1)

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """1 for the selected updates, 0 for the others; for as many clients as there are."""
        count = len(names)
        if count < 3:
            return torch.ones(count, dtype=gram.dtype)
        length = gram.diagonal()
        apart = length[:, None] + length - 2 * gram
        apart.fill_diagonal_(-torch.inf)  # so that the first of a sorted row is the update itself
        nearest = apart.sort(dim=1).values[:, 1 : count - min(self.byzantine, count - 3) - 1]
        chosen = nearest.sum(dim=1).argsort(stable=True)[: self.selected]
        return torch.zeros(count, dtype=gram.dtype).index_fill_(0, chosen, 1.0)


class FedMGDA(GramWeighting):
    """FedMGDA+: MGDA on unit updates, with a box around equal weights.

        lambda = argmin |sum_i lambda_i u_i|^2,  u_i = update_i / |update_i|,
                 lambda in the simplex, |lambda_i - 1/N| <= box;     p_i = lambda_i / |update_i|

    ``box`` = 0 averages unit updates, 1 is MGDA on them; in between nobody can be forgotten. The
    box's center is 1/N, one of the two the paper names (the other: by data size).
    Source: Hu, Shaloudegi, Zhang, Yu, "Federated learning meets multi-objective optimization"
    (2022), arXiv 2006.11489, algorithm 1.

    Args:
        box: largest distance of a client's weight from 1/N, 0 to 1.
    """

    positive = False

    def __init__(self, box: float = 0.1) -> None:
        super().__init__()
        self.box = bounded("FedMGDA+'s box", box, 0, 1)

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """lambda_i / |update_i|."""
        length = gram.diagonal().sqrt()
        prior = 1 / len(names)
        unit = (gram / length / length[:, None]).numpy()
        low, high = max(0.0, prior - self.box), min(1.0, prior + self.box)
        return torch.from_numpy(shortest(unit, prior, low, high)) / length


class FedCMOO(GramWeighting):
    """FedCMOO's FindWeights: lambda follows MGDA's objective by projected gradient steps.

        lambda <- nearest point of the simplex to lambda - mixture_lr G lambda / (mean_i |g_i|)^2,
                  ``steps`` times a round;     p_i = N lambda_i

    lambda starts at 1/N and is kept from round to round, so the weights are smoother than MGDA's.
    The number of steps, their length and the division by the mean norm are those of the authors'
    code. Here G is exact and each client holds one objective, so the paper's compressed estimate of
    G and its local training on the weighted loss have no place: see docs/methods.md.
    Source: Askin, Sharma, Joshi, Joe-Wong, "Federated communication-efficient multi-objective
    optimization" (2025), arXiv 2410.16398.

    Args:
        mixture_lr: learning rate of the mixture, above 0.
        steps: steps of the mixture per round, 1 or more.
    """

    positive = False
    starts: ClassVar[Mapping[str, float]] = {**GramWeighting.starts, "mixture": 1.0}

    def __init__(self, mixture_lr: float = 0.001, steps: int = 1000) -> None:
        super().__init__()
        self.mixture_lr = bounded("FedCMOO's mixture_lr", mixture_lr, above=True)
        self.steps = whole("FedCMOO's steps", steps, 1)

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """lambda after this round's steps."""
        rows = [self.clients.index(name) for name in names]
        kept = self.rows["mixture"]
        start = _nearest(kept[rows].cpu() / len(rows))
        scaled = gram / gram.diagonal().sqrt().mean().square()
        mixture = torch.from_numpy(descend(scaled.numpy(), start, self.mixture_lr, self.steps))
        kept[rows] = (mixture * len(rows)).to(kept.device)
        return mixture


def descend(gram: Floats, start: Floats, lr: float, steps: int) -> Floats:
    """Projected gradient steps on 1/2 x^T G x over the simplex.

    While no row reaches zero, projecting only takes the mean off the gradient, so a step is one
    product with a fixed matrix; a step that leaves the simplex is projected in full.
    """
    inside = np.eye(len(gram)) - lr * (gram - gram.mean(axis=0))
    x = start
    for _ in range(steps):
        after = inside @ x
        if after.min() < 0:
            after = _nearest(torch.from_numpy(x - lr * (gram @ x)))
        if np.array_equal(after, x):
            break
        x = after
    return x


def _nearest(values: Tensor) -> Floats:
    """The nearest point of the simplex."""
    found: Floats = onto_simplex(values, torch.ones(len(values)) > 0).numpy()
    return found


def shortest(gram: Floats, start: float, low: float, high: float) -> Floats:
    """argmin x^T G x over {sum x = 1, low <= x_i <= high}, by exact steps along pairs of rows.

    The pair that gains most moves: the most negative slope that can grow, the steepest that can
    shrink. It goes as far as the parabola or the box allows (Platt 1998, sequential minimal
    optimization).
    """
    x = np.full(len(gram), start)
    slope = gram @ x
    for _ in range(1000):
        up = int(np.argmin(np.where(x < high, slope, np.inf)))
        down = int(np.argmax(np.where(x > low, slope, -np.inf)))
        gain = slope[down] - slope[up]
        if not gain > 1e-12:
            break
        bend = gram[up, up] + gram[down, down] - 2 * gram[up, down]
        longest = min(high - x[up], x[down] - low)
        step = min(longest, gain / bend) if bend > 0 else longest
        x[up], x[down] = min(x[up] + step, high), max(x[down] - step, low)
        slope = slope + step * (gram[:, up] - gram[:, down])
    return x


class NashMTL(GramWeighting):
    r"""The Nash bargaining solution: weights with :math:`(G p)_i = 1 / p_i`.

    It maximizes :math:`\sum_i \log(g_i \cdot d)` over directions :math:`d = \sum_j p_j g_j` of
    bounded length. The condition is the gradient of a strictly convex function,

    .. math:: \min_{p > 0} \; \tfrac{1}{2} p^\top G p - \sum_i \log p_i ,

    which is self-concordant, so damped Newton steps find its minimum from any start. (The paper
    approximates it by a sequence of linearized convex programs, which stop short of the solution
    for some G.) The paper's bound on the length of the direction is left out, since all methods'
    weights sum to the number of clients.
    Source: Navon et al., "Multi-task learning as a bargaining game" (2022), arXiv 2202.01017,
    section 3.2.

    Args:
        iterations: most Newton steps per round, 1 or more.
    """

    def __init__(self, iterations: int = 100) -> None:
        super().__init__()
        self.iterations = whole("Nash-MTL's iterations", iterations, 1)

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:  # noqa: ARG002
        """The bargain among the active clients."""
        return bargain(gram, self.iterations)


def bargain(gram: Tensor, iterations: int = 100) -> Tensor:
    """The p > 0 with G p = 1 / p, for a positive semidefinite G.

    Where gradients cancel, G is singular along a positive p and no finite solution exists; the
    ridge then selects one that points along it.
    """
    gram = gram + 1e-12 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    p = gram.diagonal().rsqrt()  # the solution if the gradients were orthogonal
    for _ in range(iterations):
        slope = gram @ p - 1 / p
        # The Hessian G + diag(1 / p^2), scaled by p on both sides to be well conditioned.
        hessian = torch.outer(p, p) * gram + torch.eye(len(p), dtype=p.dtype)
        scaled = torch.linalg.solve(hessian, p * slope)
        decrement = float((p * slope) @ scaled) ** 0.5
        p = p - p * scaled / (1 + decrement if decrement > 0.25 else 1)
        if decrement < 1e-13:
            break
    return p
