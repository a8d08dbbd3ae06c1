"""Gradient-driven methods of TorchJD, as weightings of clients.

TorchJD (an optional dependency, imported when one of these is made) has the mathematics; here is
what a federation needs around it: clients by name, who is absent, who has no gradient, private
randomness, and state that can be saved. G is the matrix of the updates' inner products, g_i
client i's update. All of it is in :class:`TorchJD`; each method is its equation and its options.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedgradnorm._checks import bounded, one_of, shown, whole
from fedgradnorm._errors import ConfigError
from fedgradnorm.weighting._base import draw, private_generator
from fedgradnorm.weighting._gram import GramWeighting

CPU = torch.device("cpu")
ScaleMode = Literal["min", "median", "rmse"]


def make_rule(name: str, **options: Any) -> Any:
    """TorchJD's class of this name, made; a ConfigError that says what to install or to change."""
    for key, value in options.items():
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{name}'s {key} must be a number, not {shown(value)}")
    try:
        return getattr(import_module("torchjd.aggregation"), name)(**options)
    except ImportError as error:
        raise ConfigError(
            f"{name} comes from TorchJD and its solvers, which are not all here ({error}); "
            "pip install 'fedgradnorm[methods]'"
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        given = f" with {shown(options)}" if options else ""
        raise ConfigError(f"TorchJD cannot make {name}{given}: {error}") from error


class TorchJD(GramWeighting):
    """Any of TorchJD's weightings that take a Gram matrix, by class name.

    >>> weighting = TorchJD("MGDAWeighting", max_iters=50)
    """

    positive = False

    def __init__(self, rule: str, **options: Any) -> None:
        super().__init__()
        self.rule = rule
        self._rule = make_rule(rule, **options)
        self.extra["draws"] = 0

    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """The rule's weights, with a generator that belongs to this round."""
        self.extra["draws"] += 1
        bits = draw(self.run_seed, self.extra["draws"]).getrandbits(63)
        with torch.no_grad(), warnings.catch_warnings(), private_generator(bits, CPU):
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

    def __init__(self) -> None:
        super().__init__("UPGradWeighting")


class DualProj(TorchJD):
    """The mean update, projected onto the cone of directions that harm nobody.

    p = argmin v^T G v, v_i >= 1/N.
    Source: Lopez-Paz, Ranzato, "Gradient episodic memory for continual learning" (2017),
    arXiv 1706.08840, equation 11.
    """

    positive = True

    def __init__(self) -> None:
        super().__init__("DualProjWeighting")


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

    def __init__(self, tolerance: float = 1e-3, max_iters: int = 100) -> None:
        self.tolerance = bounded("MGDA's tolerance", tolerance, above=True)
        self.max_iters = whole("MGDA's max_iters", max_iters, 1)
        super().__init__("MGDAWeighting", epsilon=self.tolerance, max_iters=self.max_iters)


class PCGrad(TorchJD):
    """Each g_i loses its component against every g_j it conflicts with, in random order.

    Source: Yu et al., "Gradient surgery for multi-task learning" (2020), arXiv 2001.06782,
    algorithm 1.
    """

    positive = True

    def __init__(self) -> None:
        super().__init__("PCGradWeighting")


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

    def __init__(self, beta: float = 0.5) -> None:
        self.beta = bounded("GradVac's beta", beta, 0, 1)
        super().__init__("GradVacWeighting", beta=self.beta)
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

    def __init__(self, c: float = 0.5) -> None:
        self.c = bounded("CAGrad's c", c)
        super().__init__("CAGradWeighting", c=self.c)


class IMTLG(TorchJD):
    """The combination with equal projections on all g_i: p = G^+ d / sum(G^+ d), d_i = |g_i|.

    Weights may be negative. It takes the gradients of the shared network; the paper takes those of
    the network's output instead. The form is TorchJD's, which also holds for dependent updates.
    Source: Liu, Li, Kuang et al., "Towards impartial multi-task learning" (2021), equations 1, 2.
    """

    def __init__(self) -> None:
        super().__init__("IMTLGWeighting")


class AlignedMTL(TorchJD):
    """The principal components of the updates made equally long: p = sqrt(s) V L^(-1/2) V^T 1/N.

    G = V L V^T; ``scale_mode`` says which eigenvalue s is: the least one in the paper. Weights may
    be negative.
    Source: Senushkin et al., "Independent component alignment for multi-task learning" (2023),
    arXiv 2305.19000, algorithm 1.

    Args:
        scale_mode: eigenvalue that all components are scaled to: min, median or rmse.
    """

    def __init__(self, scale_mode: ScaleMode = "min") -> None:
        one_of("Aligned-MTL's scale_mode", scale_mode, get_args(ScaleMode))
        super().__init__("AlignedMTLWeighting", scale_mode=scale_mode)
        self.scale_mode = scale_mode


class FairGrad(TorchJD):
    """alpha-fair improvements: G p = p^(-1/alpha).

    Found by least squares, as in the authors' code.
    Source: Ban, Ji, "Fair resource allocation in multi-task learning" (2024), arXiv 2402.15638,
    equation 4.

    Args:
        alpha: degree of fairness, 0 or more; larger values favor the least improvement.
    """

    positive = True

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = bounded("FairGrad's alpha", alpha)
        super().__init__("FairGradWeighting", alpha=self.alpha)


class Krum(TorchJD):
    """The update nearest to the N - byzantine - 2 others it is nearest to; ``selected`` of them.

    Near by the sum of distances, which is TorchJD's reading; the paper sums their squares. With
    fewer than ``byzantine`` + 3 clients in a round, as many faults as their number allows.
    Source: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient
    descent" (2017), arXiv 1703.02757.

    Args:
        byzantine: number of clients that may be faulty, 0 or more.
        selected: number of updates that are averaged, 1 or more.
    """

    def __init__(self, byzantine: int = 1, selected: int = 1) -> None:
        self.byzantine = whole("Krum's byzantine", byzantine, 0)
        self.selected = whole("Krum's selected", selected, 1)
        super().__init__("KrumWeighting", n_byzantine=self.byzantine, n_selected=self.selected)

    def apply(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """The rule, for as many clients as there are."""
        if len(names) < 3:
            return torch.ones(len(names), dtype=gram.dtype)
        self._rule.n_byzantine = min(self.byzantine, len(names) - 3)
        self._rule.n_selected = min(self.selected, len(names))
        return super().apply(gram, names)
