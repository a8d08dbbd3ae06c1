"""The golden runs: which clients, which network, and which settings; nothing is run here.

Cases of one problem differ in who computes it (``problem@engine``) or in how it is carried out
(resumed, saved, on two ranks, over Flower), and must give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 1e-9
"""Relative to the largest number of an array: rounding differs between processors, by 1e-11 at most
where AVX2 and AVX-512 were compared."""
SOLVED = 1e-5
"""The same where a convex program is solved, whose solver stops at some accuracy of its own."""
BASE: dict[str, Any] = {"rounds": 6, "batch_size": 8, "lr": 0.02, "eval_every": 3, "seed": 3}
ALL = ("loop", "joint", "stacked", "roster", "auto")
BOTH = ("loop", "auto")
APART = ("loop", "stacked", "auto")


@dataclass(frozen=True)
class Case:
    """One run. ``weighting`` is the name of a class and its options, ``method`` a named method.

    ``carried`` is how the run is carried out: "plain"; "resumed" (stopped after ``stop`` rounds);
    "saved" (read again from its folder); "ranks" (two processes under torchrun); "flower" (server
    and clients with Flower's messages between them); "started" (from another run of ``stop``
    rounds); "tuned" (the first client tunes its part of the finished run, by ``after``).
    """

    problem: str
    engine: str = "auto"
    federation: str = "kinds"
    network: str = "dense"
    weighting: tuple[str, Mapping[str, Any]] | None = None
    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    carried: str = "plain"
    stop: int = 0
    after: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE

    @property
    def name(self) -> str:
        """How the case is called."""
        how = "" if self.carried in ("plain", "started", "tuned") else f", {self.carried}"
        return f"{self.problem}@{self.engine}{how}"

    @property
    def slow(self) -> bool:
        """Whether other processes are started."""
        return self.carried == "ranks"


def _cases(
    problem: str, /, *engines: str, weighting: Any = None, solved: bool = False, **more: Any
) -> Iterator[Case]:
    """A problem with each of these engines; what is no field of a case is a setting."""
    if isinstance(weighting, str):
        weighting = (weighting, {})
    if solved:
        more["tolerance"] = SOLVED
    own = {key: more.pop(key) for key in list(more) if key in Case.__dataclass_fields__}
    settings = {**BASE, **more}
    for engine in engines or BOTH:
        yield Case(problem, engine, weighting=weighting, settings=settings, **own)


def _gradnorm(**options: Any) -> tuple[str, dict[str, Any]]:
    return "GradNorm", options


_SGD: dict[str, Any] = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
_ADAMW: dict[str, Any] = {"name": "adamw", "lr": 0.01, "weight_decay": 0.1}
_CLIENTS = ("classes", "two", "labels", "stars", "numbers")
_STATIC = {name: 0.5 + i for i, name in enumerate(_CLIENTS)}


def _engines() -> Iterator[Case]:
    """Problems that every engine can run, on every engine."""
    yield from _cases("engines: all kinds", *ALL)
    yield from _cases("engines: three", *ALL, federation="three", network="relu")
    yield from _cases(
        "engines: many head steps, all rows", *ALL, head_steps=3, batch_size=None,
        weighting=_gradnorm(rule="squared"), first_loss="first_round",
    )  # fmt: skip
    yield from _cases(
        "engines: some take part", *ALL, participation=0.6, aggregate="by_size",
        weighting=_gradnorm(rule="direct"), head_optimizer="sgd",
    )  # fmt: skip
    yield from _cases(
        "engines: together by task", *ALL, federation="grouped", weight_per="task", phases="joint",
        weighting=_gradnorm(rule="relative"),
    )  # fmt: skip
    yield from _cases(
        "engines: images", "loop", "joint", "stacked", "auto",
        federation="images", network="convolution",
    )  # fmt: skip
    yield from _cases("engines: many shared steps", *APART, shared_steps=3, head_steps=2)
    yield from _cases(
        "engines: crowd", "loop", "roster", "auto", federation="crowd", participation=0.03,
        rounds=5, eval_every=0, record_clients=4, eval_clients=10,
    )  # fmt: skip


def _gradnorms() -> Iterator[Case]:
    """GradNorm's rules and options."""
    for rule in ("absolute", "squared", "relative", "direct"):
        yield from _cases(f"gradnorm: {rule}", weighting=_gradnorm(rule=rule, gamma=1.5))
    variants: dict[str, dict[str, Any]] = {
        "no pull": {"gamma": 0.0},
        "sgd": {"optimizer": "sgd", "lr": 0.01},
        "squared sgd": {"rule": "squared", "optimizer": "sgd", "lr": 1e-4},
        "floor": {"lr": 0.3, "floor": 0.5},
        "smoothing": {"rule": "direct", "smoothing": 0.5},
        "warmup": {"warmup": 3, "lr": 0.05},
        "guard": {"rule": "direct", "guard": 0.9},
    }
    for name, options in variants.items():
        yield from _cases(f"gradnorm: {name}", "auto", weighting=_gradnorm(**options))
    yield from _cases("gradnorm: old order", step_with="previous", weighting=_gradnorm(lr=0.1))
    yield from _cases("gradnorm: log of classes", "auto", federation="same",
                      first_loss="log_classes", weighting=_gradnorm(lr=0.1))  # fmt: skip
    yield from _cases("gradnorm: by size", "auto", aggregate="by_size")
    yield from _cases("gradnorm: gauge", norm_layer=["0", "2.weight"], weighting=_gradnorm(lr=0.1))
    yield from _cases("gradnorm: gauge of one", "auto", norm_layer="0.weight")
    yield from _cases(
        "gradnorm: by task, some take part", federation="grouped", weight_per="task",
        participation=0.6, weighting=_gradnorm(rule="direct"),
    )  # fmt: skip


_METHODS = (
    "fedgradnorm", "fedgradnorm-direct", "fedgradnorm-steady", "fedrep", "fedper", "local",
    "central", "inverse-first-loss", "geometric-mean", "rlw", "dwa", "uw", "imtl-l", "famo",
    "q-ffl", "afl", "mgda", "fsmgda", "fedmgda", "fedcmoo", "pcgrad", "gradvac", "imtl-g",
    "aligned-mtl", "krum", "config", "graddrop", "trimmed-mean", "fedrep-classic", "fedprox",
    "fedbabu", "ditto",
)  # fmt: skip
_SOLVED = ("upgrad", "dualproj", "cagrad", "nash-mtl", "fairgrad")
_FEWER: dict[str, dict[str, Any]] = {"fedbabu": {"final_head_steps": 5}}


def _methods() -> Iterator[Case]:
    """Every named method, by the loop and by what is chosen for it."""
    for name in _METHODS:
        federation = "grouped" if name == "fsmgda" else "kinds"
        more = _FEWER.get(name, {})
        yield from _cases(f"method: {name}", method=name, federation=federation, **more)
    for name in _SOLVED:
        yield from _cases(f"method: {name}", method=name, federation="three", solved=True)
    yield from _cases("method: fedavg", method="fedavg", federation="same")
    yield from _cases("method: static", "auto", method="static",
                      weighting=("Static", {"weights": _STATIC}))  # fmt: skip
    yield from _cases("weighting: BySize", "auto", weighting="BySize")
    yield from _cases("weighting: DWA of two rounds", "auto", weighting=("DWA", {"every": 2}))
    yield from _cases("weighting: MGDA by task", federation="grouped", weight_per="task",
                      weighting="MGDA", participation=0.8)  # fmt: skip
    yield from _cases("weighting: PCGrad, many steps", "loop", "stacked", weighting="PCGrad",
                      shared_steps=2)  # fmt: skip
    yield from _cases("weighting: IMTLG, images", federation="images", network="pooled",
                      weighting="IMTLG")  # fmt: skip


def _tasks() -> Iterator[Case]:
    """Kinds of tasks, forms of inputs and clients' own parts."""
    yield from _cases("tasks: special", federation="special")
    yield from _cases("tasks: gaps", federation="gaps")
    yield from _cases("tasks: several", federation="several")
    yield from _cases("tasks: several with gaps", federation="several gaps", participation=0.7)
    yield from _cases("tasks: maps", federation="maps", network="maps")
    yield from _cases("tasks: tokens", federation="tokens", network="tokens")
    yield from _cases("tasks: sequences", federation="steps", network="steps")
    yield from _cases("tasks: named inputs", federation="named")
    yield from _cases("tasks: standardized", federation="standardized")
    yield from _cases("tasks: stems", federation="stems", head_clip=1.0)
    yield from _cases("tasks: own heads", federation="own heads")
    yield from _cases("tasks: streamed", federation="streamed", head_steps=2)


def _networks() -> Iterator[Case]:
    """Networks that need care, and networks of which clients share a part."""
    yield from _cases("network: batch norm", network="batch norm")
    yield from _cases("network: layer norm", network="layer norm")
    yield from _cases("network: dropout", "loop", network="dropout")
    yield from _cases("network: used twice", network="twice")
    yield from _cases("network: half frozen", network="half frozen")
    yield from _cases("network: pooled", federation="images", network="pooled")
    yield from _cases("parts: FedBN", network="batch norm", shared=["!*Norm*"])
    yield from _cases("parts: private layer", network="relu", shared=["0", "2"], norm_layer="2")
    yield from _cases("parts: frozen layer", network="relu", frozen="0")
    yield from _cases("parts: frozen and private", network="relu", frozen="0.bias", shared="!4",
                      participation=0.7)  # fmt: skip


def _rounds() -> Iterator[Case]:
    """What clients and server do in a round."""
    yield from _cases("round: delta", "auto", sends="delta", shared_steps=2)
    yield from _cases("round: model", "auto", sends="model", shared_steps=2,
                      server_optimizer={"name": "sgd", "lr": 1.0})  # fmt: skip
    yield from _cases("round: losses after", "auto", report_loss="after", shared_steps=2)
    yield from _cases("round: together, many steps", *APART, phases="joint", shared_steps=2)
    yield from _cases("round: more head steps", *APART, head_steps=4, shared_steps=2)
    yield from _cases("round: no head steps", head_steps=0, final_head_steps=3)
    yield from _cases("round: local momentum", "auto", shared_steps=3,
                      local_optimizer=_SGD, sends="delta")  # fmt: skip
    yield from _cases("round: local adam", "auto", shared_steps=2, local_optimizer="adam",
                      sends="delta")  # fmt: skip
    yield from _cases("round: local adamw", "auto", shared_steps=2, local_optimizer=_ADAMW)
    yield from _cases("round: proximal", "auto", shared_steps=3, proximal=0.5)
    yield from _cases("round: clip", clip=0.2, head_clip=0.1)
    yield from _cases("round: clip, many steps", "auto", clip=0.2, head_clip=0.1, shared_steps=2)
    yield from _cases("optimizers: heads momentum", head_optimizer=_SGD, head_steps=2)
    yield from _cases("optimizers: heads adamw", head_optimizer=_ADAMW)
    yield from _cases("optimizers: heads rmsprop", head_optimizer="rmsprop")
    yield from _cases("optimizers: server momentum", server_optimizer=_SGD)
    yield from _cases("optimizers: server adamw", "auto", server_optimizer=_ADAMW)
    yield from _cases("rates: cosine", server_schedule="cosine", head_schedule="cosine")
    yield from _cases("rates: a list", server_schedule=[
        {"name": "LinearLR", "start_factor": 0.2, "total_iters": 3}, "cosine",
    ], head_schedule={"name": "StepLR", "step_size": 2, "gamma": 0.3})  # fmt: skip
    yield from _cases("rates: one cycle", "auto", server_schedule="OneCycleLR",
                      server_optimizer=_SGD)  # fmt: skip
    yield from _cases("clients: named", participation=["classes", "numbers"])
    yield from _cases("clients: in turn", participation=[["classes", "numbers"], ["two"], [
        "labels", "stars", "two"]])  # fmt: skip
    yield from _cases("batches: all rows", batch_size=None, weighting="Equal")
    yield from _cases("batches: small", "auto", batch_size=3)
    yield from _cases("batches: epochs", "auto", rounds=None, epochs=1.5, eval_every=None)


def _heads() -> Iterator[Case]:
    """Heads in common, how heads begin, and what clients do for themselves."""
    yield from _cases("heads: by task", federation="grouped", heads="task", participation=0.8)
    yield from _cases("heads: all", federation="same", heads="all", aggregate="by_size")
    yield from _cases("heads: random start", head_init="random")
    yield from _cases("heads: start at targets", "auto", head_init="targets",
                      federation="gaps")  # fmt: skip
    yield from _cases("heads: final steps", final_head_steps=4, federation="gaps")
    yield from _cases("personal: head", federation="validated",
                      personalize={"steps": 6, "lr": 0.05, "what": "head"})  # fmt: skip
    yield from _cases("personal: network", federation="validated",
                      personalize={"steps": 6, "lr": 0.01, "what": "network"})  # fmt: skip
    yield from _cases("personal: layers, last step", "auto",
                      personalize={"steps": 6, "lr": 0.01, "what": ["2"]})  # fmt: skip
    yield from _cases("personal: ditto", ditto=0.5, shared_steps=2, weighting="Equal")
    yield from _cases("alone: all kinds", share="none")
    yield from _cases("alone: gradnorm's settings", share="none", head_steps=2,
                      head_optimizer=_SGD, network="relu")  # fmt: skip
    yield from _cases("alone: images", share="none", federation="images", network="convolution")
    yield from _cases("alone: best kept", share="none", federation="validated", keep="best",
                      lr=0.3, eval_every=2)  # fmt: skip
    yield from _cases("alone: several tasks", share="none", federation="several")


def _ends() -> Iterator[Case]:
    """What is recorded and kept, and promises of privacy."""
    yield from _cases("record: some", "auto", eval_clients=2, record_clients=2, eval_every=2)
    yield from _cases("record: at the end", "auto", eval_every=0, log_every=2)
    yield from _cases("keep: best", federation="validated", keep="best", lr=0.2, eval_every=1,
                      rounds=10)  # fmt: skip
    yield from _cases("keep: best, patience", "auto", federation="validated", keep="best",
                      patience=3, lr=0.1, eval_every=1, rounds=12)  # fmt: skip
    yield from _cases("keep: own best", federation="validated", keep="own_best", lr=0.2,
                      eval_every=1, patience=3, rounds=10)  # fmt: skip
    yield from _cases("privacy: of rows", federation="private rows",
                      weighting=_gradnorm(lr=0.05))  # fmt: skip
    yield from _cases(
        "privacy: of clients", participation=0.7, weighting=_gradnorm(rule="direct"),
        privacy={"epsilon": 20.0, "delta": 1e-3, "noise_multiplier": 0.5, "noise": "seeded"},
    )  # fmt: skip


def _carried() -> Iterator[Case]:
    """The same runs, carried out otherwise."""
    yield from _cases("started: from another run", network="batch norm", carried="started", stop=3)
    yield from _cases("tuned: a finished run", "auto", federation="validated", carried="tuned",
                      after={"steps": 5, "lr": 0.05, "what": "network"})  # fmt: skip
    yield from _cases("engines: all kinds", *BOTH, carried="resumed", stop=3)
    yield from _cases("engines: all kinds", "auto", carried="saved")
    yield from _cases("network: batch norm", "auto", network="batch norm", carried="resumed",
                      stop=2)  # fmt: skip
    yield from _cases("alone: all kinds", "auto", share="none", carried="resumed", stop=4)
    yield from _cases("tasks: streamed", "auto", federation="streamed", head_steps=2,
                      carried="resumed", stop=3)  # fmt: skip
    yield from _cases("keep: own best", "auto", federation="validated", keep="own_best", lr=0.2,
                      eval_every=1, patience=3, rounds=10, carried="resumed", stop=2)  # fmt: skip
    yield from _cases("personal: ditto", "auto", ditto=0.5, shared_steps=2, weighting="Equal",
                      carried="resumed", stop=3)  # fmt: skip
    yield from _cases("privacy: of rows", "auto", federation="private rows",
                      weighting=_gradnorm(lr=0.05), carried="resumed", stop=3)  # fmt: skip
    yield from _cases("engines: all kinds", "auto", carried="ranks")
    yield from _cases("weighting: MGDA by task", "auto", federation="grouped", weight_per="task",
                      weighting="MGDA", participation=0.8, carried="ranks")  # fmt: skip
    yield from _cases("engines: all kinds", "loop", carried="flower")
    yield from _cases("engines: many shared steps", "loop", shared_steps=3, head_steps=2,
                      carried="flower")  # fmt: skip
    yield from _cases("heads: by task", "loop", federation="grouped", heads="task",
                      participation=0.8, carried="flower")  # fmt: skip


_GROUPS = (_engines, _gradnorms, _methods, _tasks, _networks, _rounds, _heads, _ends, _carried)
CASES: dict[str, Case] = {case.name: case for group in _GROUPS for case in group()}
"""Every golden run, by name."""
PROBLEMS: dict[str, list[Case]] = {
    problem: those
    for problem in dict.fromkeys(case.problem for case in CASES.values())
    if len(those := [case for case in CASES.values() if case.problem == problem]) > 1
}
"""Cases that must agree with each other, the first with all others."""
