"""The methods by name: which weighting, which settings, whose paper."""

from __future__ import annotations

from fedgradnorm._errors import choose
from fedgradnorm.experiments._literature import RIVALS
from fedgradnorm.experiments._method import Method
from fedgradnorm.weighting import Equal, GradNorm, Steady

__all__ = ["METHODS", "Method", "find_method"]

_FEDGRADNORM = "Mortaheb, Vahapoglu, Ulukus 2022"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "fedgradnorm",
            "weights step toward a common pace of all tasks",
            _FEDGRADNORM,
            GradNorm,
        ),
        Method(
            "fedgradnorm-paper",
            "Algorithm 2 to the letter: loss after the step, no floor",
            _FEDGRADNORM,
            GradNorm,
            fixed={"rule": "absolute", "floor": None},
            settings={"report_loss": "after", "head_start": "random"},
        ),
        Method(
            "fedgradnorm-direct",
            "weights go straight to where fedgradnorm's go slowly",
            "this package",
            GradNorm,
            fixed={"rule": "direct"},
        ),
        Method(
            "fedgradnorm-steady",
            "the same from means over all rounds: for small clients",
            "this package",
            Steady,
        ),
        Method(
            "fedrep",
            "equal weights; head first, then network",
            "Collins et al. 2021",
            Equal,
        ),
        Method(
            "fedper",
            "equal weights; head and network together",
            "Arivazhagan et al. 2019",
            Equal,
            settings={"schedule": "together"},
        ),
        Method(
            "local",
            "nothing shared: each client trains alone",
            "baseline",
            Equal,
            settings={"share": "none"},
        ),
        Method(
            "central",
            "GradNorm in one process, everybody in each step",
            "Chen et al. 2018",
            GradNorm,
            settings={"schedule": "together", "order": "old", "participation": 1.0},
        ),
        *RIVALS,
    )
}
"""Every method that ``method = "..."`` can name."""


def find_method(name: str) -> Method:
    """The method of that name; a ConfigError with the nearest valid name if there is none."""
    return METHODS[choose(name, METHODS, "method")]
