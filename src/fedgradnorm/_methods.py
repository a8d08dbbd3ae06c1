"""The methods by name: which weighting, which settings, whose paper.

A name selects a preset of weighting and settings, in Python and in config files alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedgradnorm import weighting as w
from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, FedGradNormError, choose
from fedgradnorm._options import check_options, options_of
from fedgradnorm._round.settings import FIELDS, Settings, key_of, name_of, unknown
from fedgradnorm._runs.averaged import static_from_run
from fedgradnorm.weighting import Needs, Weighting

DEFAULT = "fedgradnorm-direct"
LOCAL = "local"
"""The method that shares nothing: every client trains alone."""
METHODS: dict[str, Method] = {}
"""Every method that ``method = "..."`` can name, in the order of tables."""

_BUILTIN: set[str] = set()


@dataclass(frozen=True)
class Method:
    """A weighting and settings under a name, for ``fgn.train(method=...)`` and config files.

    A method registers itself when it is made, so a module that makes one needs only be imported:

    >>> mine = Method("doctest-prox", "FedProx with mu = 1", "this page", w.Equal,
    ...               settings={"local.proximal": 1.0, "local.sends": "model"})
    >>> find_method("doctest-prox") is mine
    True
    >>> del METHODS["doctest-prox"]

    Args:
        name: what the method is called; a built-in name is taken.
        summary: what it does, in a few words.
        paper: its source.
        weighting: a class of weighting, or a function that returns one.
        fixed: options of the weighting that the name stands for.
        settings: settings that the name stands for, such as ``{"local.proximal": 0.01}``. The
            group may be left out; the names are stored without it.
        cost: the server's work per round, with N clients and D shared parameters, in addition to
            the weighted sum of updates (N D).
    """

    name: str
    summary: str
    paper: str
    weighting: Callable[..., Weighting]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    cost: str = "N"

    def __post_init__(self) -> None:
        if self.name in _BUILTIN:
            raise ConfigError(f"method {self.name!r} exists already; choose another name")
        for key in self.settings:
            if not name_of(key) and key not in FIELDS:
                raise ConfigError(f"method {self.name!r}: {unknown(key)}")
        flat = {name_of(key) or key: value for key, value in self.settings.items()}
        object.__setattr__(self, "settings", flat)
        METHODS[self.name] = self

    def options(self) -> dict[str, inspect.Parameter]:
        """What ``[weighting]`` may hold with this method."""
        return options_of(self.weighting, without=self.fixed)

    def build(self, options: Mapping[str, Any] | None = None) -> Weighting:
        """The weighting with these options; a wrong name or value is a ConfigError.

        TOML has no null: "none" stands for None, for options that can be None.
        """
        allowed = self.options()
        given = {
            name: None if value == "none" and _may_be_none(allowed.get(name)) else value
            for name, value in (options or {}).items()
        }
        what = f"the weighting of method {self.name!r}"
        check_options(what, given, allowed)
        try:
            return self.weighting(**self.fixed, **given)
        except FedGradNormError:
            raise
        except Exception as error:  # a value of the wrong kind may fail anywhere in there
            reason = str(error) or type(error).__name__
            raise ConfigError(f"{what} cannot be made with {given}: {reason}") from error

    def check(self, settings: Settings) -> None:
        """Refuse settings that contradict the method; a default stands for the method's value."""
        for name, fixed in self.settings.items():
            value = getattr(settings, name)
            if value not in (fixed, FIELDS[name].default):
                raise ConfigError(
                    f"{key_of(name)} = {value!r} does not go with method {self.name!r}, which is "
                    f"{name} = {fixed!r}; leave it out or choose another method"
                )

    def applied(self, settings: Settings) -> Settings:
        """The settings with what the method fixes."""
        self.check(settings)
        return replace(settings, **self.settings)

    def weigh(self, weighting: Weighting | Mapping[str, Any] | None) -> Weighting:
        """The method's weighting: from its options, or a given one if it is of this method."""
        if not isinstance(weighting, Weighting):
            return self.build(weighting)
        fixed = all(getattr(weighting, key, None) == value for key, value in self.fixed.items())
        if type(weighting) is not self.weighting or not fixed:
            fixes = "".join(f", {key}={value!r}" for key, value in self.fixed.items())
            raise ConfigError(
                f"method {self.name!r} weighs clients with {self._maker}({fixes[2:]}), not with "
                f"{type(weighting).__name__}; leave weighting out, give options of it such as "
                f"weighting={{...}}, or leave method out and set {self._set or 'nothing else'}"
            )
        return weighting

    @property
    def _maker(self) -> str:
        return getattr(self.weighting, "__name__", str(self.weighting))

    @property
    def _set(self) -> str:
        return ", ".join(f"{key_of(name)}={value!r}" for name, value in self.settings.items())

    @property
    def needs(self) -> Needs:
        """What the server must see of a client, beside the sum of updates."""
        return getattr(self.weighting, "needs", Needs.NOTHING)

    @property
    def state(self) -> tuple[str, ...]:
        """What the server keeps per client from round to round."""
        starts: Mapping[str, float] = getattr(self.weighting, "starts", {})
        return ("weight", *starts) if self.needs or starts else ()

    @property
    def beyond_sums(self) -> str:
        """What the server must see of its clients beside sums over them; "": nothing."""
        return getattr(self.weighting, "beyond_sums", "")


def _may_be_none(option: inspect.Parameter | None) -> bool:
    return option is not None and str(option.annotation).endswith("| None")


def find_method(name: str) -> Method:
    """The method of that name; a ConfigError with the nearest valid name if there is none."""
    if not isinstance(name, str):
        raise ConfigError(f"method must be a name such as {DEFAULT!r}, not {shown(name)}")
    return METHODS[choose(name, METHODS, "method")]


class _Listed(Mapping[str, Method]):
    """The registered methods by name, to be read and not changed."""

    def __getitem__(self, name: str) -> Method:
        return METHODS[name]

    def __iter__(self) -> Iterator[str]:
        return iter(METHODS)

    def __len__(self) -> int:
        return len(METHODS)

    def __repr__(self) -> str:
        return f"methods({', '.join(self)})"


methods = _Listed()
"""Every method by name; ``list(fgn.methods)`` are the names."""

_FEDGRADNORM = "Mortaheb, Vahapoglu, Ulukus 2022"

Method(
    "fedgradnorm",
    "weights step toward a common pace of all tasks",
    _FEDGRADNORM,
    w.GradNorm,
)
Method(
    "fedgradnorm-direct",
    "weights go straight to where fedgradnorm's go slowly",
    "this package",
    w.GradNorm,
    fixed={"rule": "direct"},
)
Method(
    "fedgradnorm-steady",
    "the same from means over all rounds: for small clients",
    "this package",
    w.Steady,
)
Method(
    "fedrep",
    "equal weights; head first, then network",
    "Collins et al. 2021",
    w.Equal,
)
Method(
    "fedper",
    "equal weights; head and network together",
    "Arivazhagan et al. 2019",
    w.Equal,
    settings={"phases": "joint"},
)
Method(
    LOCAL,
    "nothing shared: each client trains alone",
    "baseline",
    w.Equal,
    settings={"share": "none"},
)
Method(
    "central",
    "GradNorm in one process, everybody in each step",
    "Chen et al. 2018",
    w.GradNorm,
    settings={"phases": "joint", "step_with": "previous", "participation": 1.0},
)

_AVERAGED = {"sends": "model", "server_optimizer": {"name": "sgd", "lr": 1.0}}
"""Clients send models and the server averages them."""

_GRAM = "N^2 D"
_PROGRAM = "N^2 D + a convex program"

Method("static", "weights chosen by hand", "baseline", w.Static)
Method(
    "fedgradnorm-static",
    "a finished run's mean weights, kept constant",
    "Chen et al. 2018",
    static_from_run,
)

Method("inverse-first-loss", "weight 1 / first loss, for ever", "baseline", w.InverseFirstLoss)
Method("geometric-mean", "weight 1 / loss", "Chennupati et al. 2019", w.GeometricMean)
Method("rlw", "random weights in every round", "Lin et al. 2022", w.RandomWeights)
Method("dwa", "who improved least counts most", "Liu, Johns, Davison 2019", w.DWA)
Method("uw", "learned variance of every task", "Kendall et al. 2018", w.Uncertainty)
Method("imtl-l", "learned scale of every loss", "Liu et al. 2021", w.IMTLL)
Method("famo", "all losses fall at one rate", "Liu et al. 2023", w.FAMO)
Method("q-ffl", "weight loss^q: large losses first", "Li et al. 2020", w.QFFL)
Method("afl", "the worst mixture of clients", "Mohri et al. 2019", w.AFL)

Method("upgrad", "projections that harm nobody", "Quinton, Rey 2024", w.UPGrad, cost=_PROGRAM)
Method(
    "dualproj",
    "the mean, projected to harm nobody",
    "Lopez-Paz, Ranzato 2017",
    w.DualProj,
    cost=_PROGRAM,
)
Method("mgda", "shortest vector of the hull", "Sener, Koltun 2018", w.MGDA, cost=_GRAM)
Method(
    "fsmgda",
    "MGDA on the tasks' mean updates",
    "Yang et al. 2023",
    w.MGDA,
    settings={"weight_per": "task"},
    cost=_GRAM,
)
Method("fedmgda", "MGDA on unit updates, in a box", "Hu et al. 2022", w.FedMGDA, cost=_GRAM)
Method("fedcmoo", "MGDA by projected gradient steps", "Askin et al. 2025", w.FedCMOO, cost=_GRAM)
Method("pcgrad", "conflicts projected away", "Yu et al. 2020", w.PCGrad, cost=_GRAM)
Method("gradvac", "cosines kept at their mean", "Wang et al. 2021", w.GradVac, cost=_GRAM)
Method("cagrad", "best worst case near the mean", "Liu et al. 2021", w.CAGrad, cost=_PROGRAM)
Method("nash-mtl", "the bargaining solution", "Navon et al. 2022", w.NashMTL, cost=_PROGRAM)
Method("imtl-g", "equal projections on all", "Liu et al. 2021", w.IMTLG, cost=_GRAM)
Method(
    "aligned-mtl",
    "equal principal components",
    "Senushkin et al. 2023",
    w.AlignedMTL,
    cost=_GRAM,
)
Method("fairgrad", "alpha-fair improvements", "Ban, Ji 2024", w.FairGrad, cost=_PROGRAM)
Method("krum", "the most typical update", "Blanchard et al. 2017", w.Krum, cost=_GRAM)
Method("config", "one cosine to all updates", "Liu et al. 2024", w.ConFIG, cost=_GRAM)
Method("graddrop", "one sign per parameter", "Chen et al. 2020", w.GradDrop, cost="N D")
Method(
    "trimmed-mean",
    "mean without the extremes",
    "Yin et al. 2018",
    w.TrimmedMean,
    cost="N log N D",
)

Method(
    "fedrep-classic",
    "FedRep with averaged models",
    "Collins et al. 2021",
    w.Equal,
    settings=_AVERAGED,
)
Method(
    "fedprox",
    "averaged models, pulled back (mu = 0.01)",
    "Li et al. 2020",
    w.Equal,
    settings={**_AVERAGED, "proximal": 0.01},
)
Method(
    "fedavg",
    "everything averaged by size, heads too",
    "McMahan et al. 2017",
    w.Equal,
    settings={
        **_AVERAGED,
        "phases": "joint",
        "head_optimizer": "sgd",
        "aggregate": "by_size",
        "heads": "all",
    },
)
Method(
    "fedbabu",
    "random heads until the end, then tuned",
    "Oh et al. 2022",
    w.Equal,
    settings={"head_steps": 0, "final_head_steps": 200},
)
Method(
    "ditto",
    "a personal network near the shared one",
    "Li et al. 2021",
    w.Equal,
    settings={"ditto": 0.1},
)
Method(
    "fedgradnorm-paper",
    "Algorithm 2 to the letter: loss after the step, no floor",
    _FEDGRADNORM,
    w.GradNorm,
    fixed={"rule": "absolute", "floor": None},
    settings={"report_loss": "after", "head_init": "random"},
)

_BUILTIN.update(METHODS)
