"""Every setting of a training run, declared once: type, default, check, documentation and scope.

Settings come in groups, which are tables of a config file. In Python some groups are arguments of
:func:`fedgradnorm.train` (:data:`OPTIONS`), and those about evaluations and files are members of
its ``callbacks`` (:data:`RECORDED`). :class:`Settings` is all of them in one flat object, and what
the rest of the package reads. To add a setting, add a field to a group: checks, config files,
``key=value`` overrides, the reference and the rules of federations follow from it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._checks import bounded, flag, names, number, one_of, plain, shown, whole
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._privacy.terms import ClientPrivacy, privacy_of
from fedgradnorm._round.executor import checked_executor
from fedgradnorm._round.local_update import FirstLoss, LocalSpec, Phases, ReportLoss, Sends
from fedgradnorm._round.lr_schedules import Rates, check_schedule, filled
from fedgradnorm._round.participation import Participation
from fedgradnorm._round.server import Aggregate, ServerState, StepWith

Precision = Literal["float32", "tf32", "bf16"]
MANY = 200
"""With so many registered clients or more, engines ask how many participate in a round."""

ExecutorName = str
WeightPer = Literal["client", "task"]
Share = Literal["all", "none"]
Heads = Literal["own", "task", "all"]
HeadInit = Literal["auto", "random", "targets"]
Keep = Literal["last", "best", "own_best"]
Optimizer = str | dict[str, Any]
LrSchedule = str | dict[str, Any] | list[Any] | None
MOST_EPOCHS = 1e12

Check = Callable[[str, object], Any]
"""Returns the value as Python's own type, or raises a ConfigError that names the setting."""

Kind = tuple[Check, str]
"""A check, and the values that it allows in words where the type does not say so."""


@dataclass(frozen=True)
class Scope:
    """Where a setting matters.

    Attributes:
        changes_result: whether two runs that differ in it are different experiments.
        client_sets: whether each participant of a deployment chooses its own value.
        deployed: whether a deployment may use another value than the default.
        private: whether a deployment whose server sees only sums may do so.
        leaks: why a client with differential privacy refuses another value than ``safe``.
        safe: the value that such a client allows; the default unless given.
    """

    changes_result: bool = True
    client_sets: bool = False
    deployed: bool = True
    private: bool = True
    leaks: str = ""
    safe: Any = None


def _setting(default: Any, kind: Kind, text: str, **scope: Any) -> Any:
    """A field of a group, with everything that is known of the setting in its metadata."""
    known = {"check": kind[0], "allowed": kind[1], "text": text}
    known["scope"] = Scope(**{"safe": default, **scope})
    return field(default=default, metadata=known)


def _of(group: type[_Group], key: str, **other: Any) -> Any:
    """The flat setting that a field of a group stands for.

    ``default`` is its value without the group, where that switches something on; ``values`` are its
    values for those of the field, and ``kind`` then checks them. ``leaks`` as in :class:`Scope`.
    """
    known = {one.name: one for one in fields(group)}[key]
    check, allowed = other.get("kind") or (known.metadata["check"], known.metadata["allowed"])
    if "default" in other and "kind" not in other:
        check = _optional(check)
    metadata = {**known.metadata, "check": check, "allowed": allowed, "place": (group, key)}
    metadata |= {name: other[name] for name in ("values",) if name in other}
    default = other.get("default", known.default)
    leaks = other.get("leaks", metadata["scope"].leaks)
    metadata["scope"] = replace(metadata["scope"], safe=default, leaks=leaks)
    return field(default=default, metadata=metadata)


def _optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _whole(least: int, *, none: bool = False) -> Kind:
    def check(name: str, value: object) -> int:
        return whole(name, value, least)

    return _optional(check) if none else check, f"{least} or more"


def _choice(kind: Any) -> Kind:
    return lambda name, value: one_of(name, value, get_args(kind)), ""


def _real(name: str, value: object) -> float:
    return float(number(name, value))


def _above_0(name: str, value: object) -> float:
    return float(bounded(name, value, above=True))


def _epochs(name: str, value: object) -> float:
    if not 0 < (given := _real(name, value)) <= MOST_EPOCHS:
        raise ConfigError(f"{name} must be > 0 and at most {MOST_EPOCHS:g}, not {shown(value)}")
    return given


def _participation(name: str, value: object) -> Participation:
    if not isinstance(value, list | tuple):
        if not 0 < (given := _real(name, value)) <= 1:
            raise ConfigError(f"{name} must be in (0, 1], not {shown(value)}")
        return given
    if not value or not all(value):
        raise ConfigError(f"no client in {name}: {shown(value)}; name at least one")
    if isinstance(value[0], list | tuple):
        return [names(name, turn) for turn in value]
    return names(name, value)


def _some_clients(name: str, value: object) -> int | float:
    """A number of clients or, as a float, a share of them."""
    if isinstance(value, float):
        if not 0 < value <= 1:
            raise ConfigError(f"{name} is a share above 0 and at most 1, not {shown(value)}")
        return value
    return whole(name, value, 1)


def _number_or_names(name: str, value: object) -> int | list[str]:
    return names(name, value) if isinstance(value, list | tuple) else whole(name, value, 0)


def _metric(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be 'loss' or the name of a metric, not {shown(value)}")
    return value


def _client_privacy(_: str, value: object) -> dict[str, Any]:
    return {k: v for k, v in vars(privacy_of(value, ClientPrivacy)).items() if v is not None}


def _one_or_names(name: str, value: object) -> str | list[str]:
    return value if isinstance(value, str) else names(name, value)


def _device(name: str, value: object) -> str:
    if not isinstance(value, str | torch.device):
        raise ConfigError(f"{name} must be a text such as 'cpu' or 'cuda:0', not {shown(value)}")
    return str(value)


def _optimizer(name: str, value: object) -> Any:
    if not isinstance(value, str | Mapping):
        raise ConfigError(
            f"{name} must be a name such as 'sgd', or a table such as "
            f"{{'name': 'sgd', 'momentum': 0.9}}, not {shown(value)}"
        )
    return plain(name, value)


def _tuning(name: str, value: object) -> dict[str, Any]:
    """The table ``personalize`` as it was given; ``lr`` of the run is not known yet."""
    checked_tuning(name, value, 1e-3)
    assert isinstance(value, Mapping)
    return dict(plain(name, value))


MEANINGS = {
    "steps": "steps at most, 1 or more",
    "lr": "learning rate, above 0; lr by default",
    "what": '"head", "network" (both), or a list of layers besides the head',
}
"""The keys of ``personalize``."""


def checked_tuning(name: str, value: object, lr: float) -> dict[str, Any]:
    """The table ``personalize`` with its defaults; a ConfigError if it is not valid."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} must be a table such as {{'steps': 200, 'lr': {lr:g}, 'what': 'head'}}, "
            f"not {shown(value)}"
        )
    table = {"steps": 200, "lr": lr, "what": "head"}
    for key in value:
        choose(key if isinstance(key, str) else shown(key), MEANINGS, f"key of {name}")
    table |= plain(name, value)
    what = table["what"]
    if isinstance(what, str):
        what = one_of(f"{name}.what", what, ("head", "network"))
    else:
        what = names(f"{name}.what", what)
    rate = bounded(f"{name}.lr", table["lr"], above=True)
    return {"steps": whole(f"{name}.steps", table["steps"], 1), "lr": rate, "what": what}


_AT_LEAST_0: Kind = lambda name, value: float(bounded(name, value)), "0 or more"
_CLIP: Kind = _optional(_above_0), "above 0"
_OPTIMIZER: Kind = _optimizer, ""
_LR_SCHEDULE: Kind = check_schedule, ""
_PATTERNS: Kind = _optional(_one_or_names), ""


@dataclass(frozen=True)
class _Group:
    """What all groups share: their values are checked when they are made.

    ``said`` are the names of the settings that were given, defaults among them.
    """

    said: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        """What differs from the defaults."""
        given = [(one.name, getattr(self, one.name), one.default) for one in fields(self)]
        changed = [f"{name}={value!r}" for name, value, default in given if value != default]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __post_init__(self) -> None:
        table = next((name for name, kind in GROUPS.items() if kind is type(self)), "")
        for one in fields(self):
            key = f"{table}.{one.name}" if table else key_of(one.name)
            value = one.metadata["check"](key, getattr(self, one.name))
            object.__setattr__(self, one.name, value)


G = TypeVar("G", bound=type)


def _documented(group: G) -> G:
    """Write the fields' texts into the docstring, so that ``help`` and the reference have them.

    A keyword that the group does not have is an error that says where the setting is.
    """
    kind: Any = group
    made, known = kind.__init__, [one.name for one in fields(group)]

    @functools.wraps(made)
    def init(self: object, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in known:
                (table,) = (table for table, one in GROUPS.items() if one is group)
                raise ConfigError(unknown(name, table))
        made(self, *args, **given)
        told = {*known[: len(args)], *given}
        if len(told) == len(known):  # a copy, as of dataclasses.replace, says what is no default
            told = {one.name for one in fields(group) if getattr(self, one.name) != one.default}
        object.__setattr__(self, "said", frozenset(told))

    kind.__init__ = init
    lines = [f"{one.name}: {one.metadata['text']}" for one in fields(group)]
    wrapped = [textwrap.fill(line, 96, subsequent_indent="    ") for line in lines]
    group.__doc__ = f"{group.__doc__}\n\nArgs:\n" + textwrap.indent("\n".join(wrapped), "    ")
    return group


# fmt: off
@_documented
@dataclass(frozen=True, repr=False)
class Local(_Group):
    """What a client does in a round: steps, batches, optimizers, clipping and what it sends."""

    batch_size: int | None = _setting(
        64, _whole(1, none=True),
        "examples per local step (a smaller client uses all its examples); None for all examples.",
    )
    head_steps: int = _setting(1, _whole(0), "local steps per round on the head.")
    shared_steps: int = _setting(
        1, _whole(1), "local steps per round on the shared network, after those on the head."
    )
    phases: Phases = _setting(
        "alternating", _choice(Phases),
        "train first the head, then the shared network (``alternating``), or both in each step "
        "(``joint``).",
    )
    head_optimizer: Optimizer = _setting(
        "adam", _OPTIMIZER,
        'a class of torch.optim by name, or a table such as ``{"name": "sgd", "lr": 0.1, '
        '"momentum": 0.9}``, for the head; its state is kept across rounds. Weight decay is an '
        'option of the optimizer: ``{"name": "adamw", "weight_decay": 0.01}``.',
    )
    local_optimizer: Optimizer = _setting(
        "sgd", _OPTIMIZER, "the same for a client's copy of the shared network."
    )
    head_schedule: LrSchedule = _setting(
        None, _LR_SCHEDULE,
        'learning rate schedule of the heads over rounds: a class of torch.optim.lr_scheduler by '
        'name ("cosine", "StepLR"), a table with its options, or a list of these, applied in turn.',
        leaks="is not followed by private steps",
    )
    clip: float | None = _setting(
        None, _CLIP,
        "largest norm of a client's gradient on the shared network. At every local step, before "
        "weighting, a longer one is scaled to it; gradient norms are measured after clipping.",
        leaks="clips a whole batch, and privacy clips every example",
    )
    head_clip: float | None = _setting(
        None, _CLIP,
        "the same for the gradient of a client's head and of everything private to the client.",
        leaks="clips a whole batch, and privacy clips every example",
    )
    proximal: float = _setting(
        0.0, _AT_LEAST_0,
        "FedProx's mu: pulls local steps back to the shared network they began with.",
    )
    sends: Sends = _setting(
        "gradient", _choice(Sends),
        "what a client sends: the mean raw ``gradient``, the change of its copy divided by "
        "steps x lr (``delta``), or its ``model``; with SGD at rate 1, the server then averages "
        "models. The gradient norm is always that of the mean raw gradient.",
    )
    report_loss: ReportLoss = _setting(
        "before", _choice(ReportLoss), "measure the loss ``before`` each local step, or ``after``."
    )
    first_loss: FirstLoss = _setting(
        "dataset", _choice(FirstLoss),
        "F_0: the loss over the training ``dataset`` before any update, that of the "
        "``first_round``, or ``log_classes``.",
    )


@_documented
@dataclass(frozen=True, repr=False)
class Server(_Group):
    """What the server does in a round: who participates, how updates are added and applied."""

    server_optimizer: Optimizer = _setting(
        "adam", _OPTIMIZER,
        "optimizer of the shared network, given as ``local.head_optimizer`` is.",
    )
    server_schedule: LrSchedule = _setting(
        None, _LR_SCHEDULE,
        "learning rate schedule of the server's optimizer, given as ``local.head_schedule`` is.",
    )
    participation: Participation = _setting(
        1.0, (_participation, "a share above 0 and at most 1, or names"),
        "share of clients that participate in a round, drawn from the seed; or a list of names; or "
        "a list of such lists, used in turn.",
        private=False,
    )
    aggregate: Aggregate = _setting(
        "mean", _choice(Aggregate), "all clients count the same (``mean``), or ``by_size``.",
        private=False,
    )
    step_with: StepWith = _setting(
        "new", _choice(StepWith),
        "step with the ``new`` weights (FedGradNorm), or with the ``previous`` ones (GradNorm).",
        private=False,
    )
    privacy: ClientPrivacy | dict[str, Any] | None = _setting(
        None, (_optional(_client_privacy), ""),
        "client-level differential privacy of the shared network, for hundreds of clients: see "
        ":class:`fedgradnorm.ClientPrivacy`. Privacy of single examples belongs to a client.",
        deployed=False,
    )


@_documented
@dataclass(frozen=True, repr=False)
class Sharing(_Group):
    """What clients share: network, layers, heads and weights."""

    share: Share = _setting(
        "all", _choice(Share),
        "``all`` clients train one network, or ``none``: each client trains alone.",
        deployed=False,
    )
    shared: str | list[str] = _setting(
        "*", (_one_or_names, ""),
        "which parameters are shared: patterns of names of parameters or layers, or of classes of "
        "layers; all by default. A pattern that begins with ``!`` excludes what it matches: "
        '``["!*Norm*"]`` is FedBN. The rest is private: each client has its own copy, trained with '
        "its head. Parameters without ``requires_grad`` are frozen.",
        leaks="leaves parts of the network to each client, which are trained without noise",
    )
    frozen: str | list[str] | None = _setting(
        None, _PATTERNS, "which parameters are not trained at all, by such patterns."
    )
    heads: Heads = _setting(
        "own", _choice(Heads),
        "each client keeps its ``own``; or clients with the same ``task`` share one head, the mean "
        "of their heads after every round; or ``all`` clients do (FedAvg). Tasks with the same "
        "name are the same task. Tasks without names are the same if kind, outputs and label names "
        "agree; without label names they count as the same, with a warning, only if all such tasks "
        "agree. It is an error if no two clients share a task. Heads that are averaged must have "
        "the same shape, and the same labels in the same order.",
        private=False,
    )
    head_own: str | list[str] | None = _setting(
        None,
        _PATTERNS,
        "which parameters of a shared head each client keeps for itself, trained on its own data "
        'and never averaged: names or patterns of names, such as ``"bias"`` or ``"*.bias"``. With '
        '``"bias"``, clients share the weights and differ in level or prevalence.',
        private=False,
    )
    head_init: HeadInit = _setting(
        "auto", _choice(HeadInit),
        "what a head predicts before training: the mean (for classes: the shares) of the "
        "client's training ``targets``, or something ``random``, as in the paper. With "
        "``targets``, first losses are those of the baseline, and loss ratios mean the same for "
        "all tasks. ``auto`` chooses ``targets``, but ``random`` for clients with ``privacy``, "
        "shared heads (unless ``head_own`` has the bias), custom losses and kinds, and targets "
        "inside a Dataset. Custom heads are never changed.",
        leaks="starts a head at the mean of the targets", safe="random",
    )
    weight_per: WeightPer = _setting(
        "client", _choice(WeightPer),
        "one weight per ``client``, or per ``task``. Which clients share a task is decided as for "
        "``heads``. It is an error if no two do, except with MGDA, which is FSMGDA then.",
        deployed=False,
    )
    norm_layer: str | list[str] | None = _setting(
        None, _PATTERNS,
        "layers or parameters whose gradient norm is measured; the last shared one by default.",
    )


@_documented
@dataclass(frozen=True, repr=False)
class Personalization(_Group):
    """What each client has for itself in the end: a personal network, a tuned head."""

    ditto: float = _setting(
        0.0, _AT_LEAST_0,
        "Ditto's lambda: if > 0, each client also trains its own network, pulled toward the shared "
        "one; evaluations and predictions are then the personal networks'.",
        deployed=False, leaks="trains a second network on the same examples without noise",
    )
    final_head_steps: int = _setting(
        0, _whole(0), "steps on each head alone after the last round (FedBABU).",
        deployed=False, leaks="tunes heads on examples without noise",
    )
    personalize: dict[str, Any] | None = _setting(
        None, (_optional(_tuning), ""),
        "after everything else each client tunes its own copy on its training examples, such as "
        '``{"steps": 200, "lr": 2e-4, "what": "head"}``: the head alone, with the whole '
        "``network``, or with a list of its layers. It keeps the step with the best validation "
        "loss, step 0 included; a client without validation examples takes the last one.",
        leaks="tunes on examples without noise",
    )


@_documented
@dataclass(frozen=True, repr=False)
class Compute(_Group):
    """Where and how the numbers are computed."""

    executor: ExecutorName = _setting(
        "auto", (checked_executor, '"auto", "loop", "vmap", "joint", or a registered name'),
        "run clients one at a time (``loop``, the reference), all clients of one structure in one "
        "call (``vmap``), or all clients in one pass (``joint``). ``auto`` picks the fastest that "
        "can run them, and under torchrun spreads clients over the processes.",
        changes_result=False, client_sets=True,
    )
    device: str = _setting(
        "auto", (_device, ""), '"cpu", "cuda", or "auto".', changes_result=False, client_sets=True
    )
    precision: Precision = _setting(
        "float32", _choice(Precision),
        "of matrix products: ``float32``, or on a GPU ``tf32``, or ``bf16`` for those of the "
        "shared network, evaluations included.",
        deployed=False,
    )
    compile: bool = _setting(
        False, (flag, ""),
        "on a GPU, let torch.compile fuse the small operations of weights and optimizers. "
        "Compiling takes some seconds, so use it for long runs; results change by rounding only.",
        changes_result=False,
    )


@_documented
@dataclass(frozen=True, repr=False)
class Evaluation(_Group):
    """How often clients are evaluated, and how many of them."""

    every: int | None = _setting(
        None, _whole(0, none=True),
        "rounds between two evaluations; once per epoch by default; 0 evaluates at the end only.",
        changes_result=False, client_sets=True,
    )
    clients: int | float | None = _setting(
        None, (_optional(_some_clients), "1 or more clients, or a share above 0 and at most 1"),
        "how many clients are evaluated (100), or which share of them (0.1), drawn for each "
        "evaluation from the seed; all by default. The last evaluation is of all clients where "
        "there are 1,000 at most.",
        changes_result=False, client_sets=True, deployed=False,
    )


@_documented
@dataclass(frozen=True, repr=False)
class KeepBest(_Group):
    """End with the best round of all evaluations instead of the last one.

    The best round has the highest mean over clients of (first - loss) / max(first, loss), with
    losses on the validation examples; or the best mean of the metric that early stopping watches.
    """

    per_client: bool = _setting(
        False, (flag, ""),
        "each client ends with the network and head of the round in which its own validation "
        "result was best. With early stopping, the run then ends when neither the mean nor any "
        "client improves.",
    )


@_documented
@dataclass(frozen=True, repr=False)
class EarlyStopping(_Group):
    """End a run that no longer improves on the clients' validation examples.

    The run ends with its last round; add ``KeepBest`` to return to the best one. Clients that train
    alone stop one by one.
    """

    patience: int = _setting(
        5, _whole(1), "evaluations without improvement that end the run.", deployed=False
    )
    watch: str = _setting(
        "loss", (_metric, ""),
        '"loss", or the name of a metric that clients have, such as "accuracy". A loss is '
        "compared with the client's first one, so that clients count equally whatever their units "
        "are; a metric is averaged over the clients that have it.",
    )
    min_rounds: int | None = _setting(
        None, _whole(0, none=True),
        "rounds without improvement that must also have passed. By default 50, or 0 if you set the "
        "interval of evaluations yourself: the default one, an epoch, can be a single round.",
    )


@_documented
@dataclass(frozen=True, repr=False)
class Checkpoints(_Group):
    """How often a run with a folder writes a checkpoint."""

    every: int | None = _setting(
        None, _whole(1, none=True),
        "rounds between two checkpoints; by default an epoch, or as many as make checkpoints a "
        "twentieth of the time, but no more than the epoch that ends after 5 s.",
        changes_result=False, client_sets=True,
    )


@_documented
@dataclass(frozen=True, repr=False)
class History(_Group):
    """What the history of a run records."""

    every: int = _setting(
        1, _whole(1), "rounds between two rows of a client's own reports.",
        changes_result=False, client_sets=True,
    )
    clients: int | list[str] | None = _setting(
        None, (_optional(_number_or_names), "0 or more clients, or names"),
        "the clients whose rows are recorded: how many, drawn from the seed, or their names. By "
        "default all; with more than 500 clients 48 of them, and the first and last evaluation "
        "of all. ``Run.spread`` has quantiles over all clients.",
        changes_result=False, client_sets=True, deployed=False,
    )
# fmt: on


OPTIONS: dict[str, type[_Group]] = {
    "local": Local,
    "server": Server,
    "sharing": Sharing,
    "personalization": Personalization,
    "compute": Compute,
}
"""The groups that are arguments of ``train``, by name, which is also the name of their table."""

RECORDED: dict[str, type[_Group]] = {
    "evaluation": Evaluation,
    "keep_best": KeepBest,
    "early_stopping": EarlyStopping,
    "checkpoints": Checkpoints,
    "history": History,
}
"""The groups that are given among the callbacks of ``train``, by the name of their table."""

GROUPS: dict[str, type[_Group]] = {**OPTIONS, **RECORDED}
"""Every group by the name of its table."""


@dataclass(frozen=True, repr=False)
class Settings(Compute, Personalization, Sharing, Server, Local):
    """All settings of a run: the fields of every group, and those that belong to none."""

    eval_every: int | None = _of(Evaluation, "every")
    eval_clients: int | float | None = _of(Evaluation, "clients")
    keep: Keep = _of(
        KeepBest,
        "per_client",
        default="last",
        leaks="chooses a round on held-out examples without noise",
        values={False: "best", True: "own_best"},
        kind=_choice(Keep),
    )
    patience: int | None = _of(
        EarlyStopping,
        "patience",
        default=None,
        leaks="ends the run by held-out examples without noise",
    )
    watch: str = _of(EarlyStopping, "watch")
    min_rounds: int | None = _of(EarlyStopping, "min_rounds")
    checkpoint_every: int | None = _of(Checkpoints, "every")
    log_every: int = _of(History, "every")
    record_clients: int | list[str] | None = _of(History, "clients")
    rounds: int | None = _setting(
        None,
        _whole(1, none=True),
        "length of the run in rounds of communication. Ten epochs if neither is given.",
    )
    epochs: float | None = _setting(
        None,
        (_optional(_epochs), f"above 0, at most {MOST_EPOCHS:g}"),
        "length of the run in passes over the largest client's training examples.",
    )
    lr: float = _setting(
        1e-3,
        (_above_0, "above 0"),
        "learning rate of every network optimizer that does not set its own.",
    )
    seed: int = _setting(0, _whole(0), "determines heads, batches, participation and dropout.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.personalize is not None:
            table = checked_tuning(key_of("personalize"), self.personalize, self.lr)
            object.__setattr__(self, "personalize", table)
        if self.ditto and self.share == "none":
            raise ConfigError("ditto pulls toward the shared network; share='none' has none")
        if self.patience is None and (self.watch, self.min_rounds) != ("loss", None):
            raise ConfigError("watch and min_rounds belong to early stopping; give patience too")
        if self.eval_clients is not None and self.judges:
            what = "keep_best" if self.keeps_best else "early_stopping"
            raise ConfigError(
                f"{what} compares evaluations of the same clients, and evaluation.clients draws "
                f"others each time; leave evaluation.clients out, or {what}"
            )
        if self.head_own is not None and self.heads == "own":
            raise ConfigError(
                f"head_own = {shown(self.head_own)} says what clients keep of a head that they "
                "share, and heads = 'own' shares none; use heads = 'task' or 'all', or leave "
                "head_own out"
            )
        if self.rounds is not None and self.epochs is not None:
            raise ConfigError("give rounds or epochs, not both")
        for rates in (self.local().head_rates, self.server()["rates"]):
            if rates is not None:
                rates.at(2)  # some schedulers check their options in the first steps

    @property
    def keeps_best(self) -> bool:
        """Whether evaluations are chosen from: for all clients, or by each for itself."""
        return self.keep != "last"

    @property
    def fixes_heads(self) -> bool:
        """Whether no head is trained before the last round (FedBABU)."""
        return self.head_steps == 0 and self.phases != "joint"

    @property
    def judges(self) -> bool:
        """Whether evaluations are compared, to stop early or to keep the best round."""
        return self.keeps_best or self.patience is not None

    @property
    def least_wait(self) -> int:
        """Rounds without improvement before early stopping may end the run.

        An interval of evaluations that was chosen is patience enough. By default it is an epoch,
        which for small clients is a single round, and plateaus of 30 rounds are common.
        """
        if self.min_rounds is not None:
            return self.min_rounds
        return 50 if self.eval_every is None else 0

    def alone(self) -> Settings:
        """The same with nothing shared; what takes a server, or tunes its network, is left out."""
        return replace(
            self,
            share="none",
            personalize=None,
            ditto=0.0,
            heads="own",
            head_own=None,
            weight_per="client",
            aggregate="mean",
            privacy=None,
            executor="auto" if self.executor == "joint" else self.executor,
        )

    @property
    def client_privacy(self) -> ClientPrivacy | None:
        terms: ClientPrivacy | None = privacy_of(self.privacy, ClientPrivacy)
        return terms

    def local(self) -> LocalSpec:
        """What concerns a client, with optimizers resolved."""
        found = {one.name: getattr(self, one.name) for one in fields(LocalSpec)}
        for name in ("head_optimizer", "local_optimizer"):
            found[name] = optimizers.resolve(found[name], self.lr)
        return LocalSpec(**found)

    def server(self) -> dict[str, Any]:
        """What concerns the server, as keywords of ``ServerState``, with its optimizer resolved.

        Its keyword-only parameters that have the name of a setting are that setting.
        """
        given = inspect.signature(ServerState).parameters.values()
        known = [one.name for one in given if one.kind is one.KEYWORD_ONLY and one.name in FIELDS]
        table, spec = optimizers.resolve(self.server_optimizer, self.lr), self.server_schedule
        rates = None if spec is None else Rates(spec, table, self.rounds)
        return {"optimizer": table, "rates": rates, **{k: getattr(self, k) for k in known}}

    def for_rounds(self, rounds: int) -> Settings:
        """The same with schedules as long as the run, whose rounds may have been epochs."""
        found: dict[str, Any] = {}
        for name in ("server", "head"):
            if (spec := getattr(self, f"{name}_schedule")) is not None:
                rate = optimizers.resolve(getattr(self, f"{name}_optimizer"), self.lr)["lr"]
                found[f"{name}_schedule"] = filled(spec, rounds, rate)
        return replace(self, **found) if found else self

    def rounds_per_epoch(self, sizes: Sequence[int]) -> float:
        """Rounds in one pass over the largest client's training rows."""
        largest = max(sizes)
        return largest / (self.local().steps * min(self.batch_size or largest, largest))

    def total_rounds(self, sizes: Sequence[int]) -> int:
        """Rounds of the whole run; ten epochs where neither rounds nor epochs is given."""
        if self.rounds is not None:
            return self.rounds
        epochs = 10 if self.epochs is None else self.epochs
        # The slack keeps 100 epochs of 32 rounds from becoming 3201 through rounding.
        return max(1, math.ceil(epochs * self.rounds_per_epoch(sizes) - 1e-9))

    def few_take_part(self, clients: int) -> bool:
        """Whether there are many clients, of which at most half participate in a round."""
        plan = self.participation
        if isinstance(plan, (int, float)):
            most = round(plan * clients)
        else:
            most = max(len(turn) if isinstance(turn, list) else len(plan) for turn in plan)
        return clients >= MANY and 2 * most <= clients


FIELDS = {one.name: one for one in fields(Settings)}
"""Every setting by name."""

_PLACES = {one.name: (name, one.name) for name, kind in OPTIONS.items() for one in fields(kind)} | {
    name: (group, one.metadata["place"][1])
    for name, one in FIELDS.items()
    for group, kind in RECORDED.items()
    if one.metadata.get("place", ("", ""))[0] is kind
}
"""Where each setting that has a group is: the group's table, and the key in it."""

_NAMES: dict[tuple[str, str], str] = {place: name for name, place in _PLACES.items()}

GROUP_OF = {name: group for name, (group, _) in _PLACES.items()}
"""The group of each setting that has one."""

TOP = tuple(name for name in FIELDS if name not in GROUP_OF)
"""The settings that belong to no group."""

SWITCHES = {"keep_best": "keep", "early_stopping": "patience"}
"""Groups that enable something by being present, and the setting that they enable."""


def key_of(name: str) -> str:
    """The key of a setting in a config file.

    >>> key_of("head_steps"), key_of("eval_every"), key_of("lr")
    ('local.head_steps', 'evaluation.every', 'lr')
    """
    return ".".join(_PLACES.get(name, (name,)))


def name_of(key: str) -> str:
    """The setting that a key of a config file means; empty if it is no setting.

    >>> name_of("local.head_steps"), name_of("evaluation.every"), name_of("keep_best")
    ('head_steps', 'eval_every', 'keep')
    >>> name_of("lr"), name_of("data.samples")
    ('lr', '')
    """
    group, _, rest = key.rpartition(".")
    if not group:
        return SWITCHES.get(key, key if key in TOP else "")
    return _NAMES.get((group, rest), "")


def scope_of(name: str) -> Scope:
    scope: Scope = FIELDS[name].metadata["scope"]
    return scope


def grouped(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name as the tables of a config; False for what is switched off.

    >>> grouped({"lr": 0.1, "head_steps": 2, "keep": "best"})
    {'lr': 0.1, 'local': {'head_steps': 2}, 'keep_best': {'per_client': False}}
    >>> grouped({"patience": None, "watch": "loss"})
    {'early_stopping': False}
    """
    found: dict[str, Any] = {}
    for name, value in flat.items():
        if name not in _PLACES:
            found[name] = value
            continue
        group, key = _PLACES[name]
        switch = SWITCHES.get(group, "")
        if switch in flat and flat[switch] in ("none", FIELDS[switch].default):
            found[group] = False
            continue
        values = FIELDS[name].metadata.get("values", {})
        found.setdefault(group, {})[key] = next((k for k, v in values.items() if v == value), value)
    return found


def keyed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name as values by dotted key of a config.

    >>> keyed({"lr": 0.1, "eval_every": 2, "keep": "last"})
    {'lr': 0.1, 'evaluation.every': 2, 'keep_best': False}
    """
    found: dict[str, Any] = {}
    for name, value in grouped(flat).items():
        inside = value.items() if name in GROUPS and isinstance(value, dict) else ()
        found |= {f"{name}.{key}": one for key, one in inside} or {name: value}
    return found


def keywords(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name as keywords of ``train``, with option groups among the callbacks."""
    found = grouped(flat)
    tables = {group: found.pop(group) for group in RECORDED if group in found}
    found["callbacks"] = [RECORDED[g](**table) for g, table in tables.items() if table is not False]
    return found


def ungrouped(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name from groups: each is an object, a table, None, or a switch."""
    flat: dict[str, Any] = {}
    for name, value in given.items():
        if name not in GROUPS:
            flat[name] = value
        elif value is not None:
            flat |= _values(name, value)
    return flat


def said(given: Mapping[str, Any]) -> set[str]:
    """The names of the settings that somebody gave, be it with their defaults.

    A setting of no group counts where it is not the default.

    >>> given = {"lr": 0.1, "seed": 0, "local": Local(proximal=0), "keep_best": KeepBest()}
    >>> sorted(said({**given, "server": {"participation": 0.5}}))
    ['keep', 'lr', 'participation', 'proximal']
    """
    found: set[str] = set()
    for name, value in given.items():
        if name in GROUPS and value is not None:
            keys = value.said if isinstance(value, _Group) else value
            found |= {_NAMES[name, key] for key in keys} | {SWITCHES.get(name, "")}
        elif name in TOP and value != FIELDS[name].default:
            found.add(name)
    return found - {""}


def recorded(options: Sequence[object]) -> dict[str, _Group]:
    """The option groups among callbacks by the names of their tables, of each at most one."""
    tables: dict[str, Any] = {}
    for one in options:
        group = next(name for name, kind in RECORDED.items() if kind is type(one))
        if group in tables:
            raise ConfigError(f"callbacks has two of fgn.{type(one).__name__}; give one")
        tables[group] = one
    return tables


def _values(group: str, value: object) -> dict[str, Any]:
    kind, switch = GROUPS[group], SWITCHES.get(group)
    if switch and value is False:
        return {switch: FIELDS[switch].default}
    if switch and value is True:
        value = kind()
    if isinstance(value, Mapping):
        for name in value:
            if (group, name) not in _NAMES:
                raise ConfigError(unknown(str(name), group))
        table = dict(value)
        if switch:
            own = FIELDS[switch].metadata["place"][1]
            table = {own: next(one.default for one in fields(kind) if one.name == own), **table}
    elif type(value) is kind:
        table = {one.name: getattr(value, one.name) for one in fields(kind)}
    else:
        made = f"fgn.{kind.__name__}(...) or " if group in OPTIONS else ""
        made = "true, false or " if switch else made
        raise ConfigError(f"{group} must be {made}a table of its settings, not {shown(value)}")
    found = {_NAMES[group, key]: value for key, value in table.items()}
    for name, value in found.items():
        if values := FIELDS[name].metadata.get("values"):
            found[name] = values[flag(f"{group}.{_PLACES[name][1]}", value)]
    return found


def unknown(name: str, group: str = "") -> str:
    """Why there is no such keyword, or no such setting in a group, and where it is instead.

    >>> unknown("head_steps")
    "'head_steps' is a setting of the group local: local=fgn.Local(head_steps=...)"
    >>> unknown("patience")
    "'patience' is given among the callbacks: callbacks=[fgn.EarlyStopping(patience=...)]"
    >>> unknown("learning_rate")
    "'learning_rate' is called lr here: lr=..."
    >>> unknown("head_step")
    "unknown setting 'head_step'; did you mean 'head_steps': local=fgn.Local(head_steps=...)?"
    """
    if name in RECORDED:
        kind = RECORDED[name].__name__
        return f"{name!r} is given among the callbacks: callbacks=[fgn.{kind}(...)]"
    if name in GROUP_OF:
        right = GROUP_OF[name]
        if right in RECORDED:
            return f"{name!r} is given among the callbacks: {_given_as(name)}"
        return f"{name!r} is a setting of the group {right}: {_given_as(name)}"
    if name in TOP:
        return f"{name!r} belongs to no group: give it as {_given_as(name)}"
    if name in ELSEWHERE:
        return f"{name!r} is called {ELSEWHERE[name]} here: {_given_as(ELSEWHERE[name])}"
    if group:
        own = [key for table, key in _NAMES if table == group]
        try:
            choose(name, own, "setting")
        except ConfigError as error:
            return f"{group}: {error}"
    near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.6)
    if near:
        key = _PLACES.get(near[0], ("", near[0]))[1]
        return f"unknown setting {name!r}; did you mean {key!r}: {_given_as(near[0])}?"
    return f"unknown setting {name!r} (one of: {', '.join((*TOP, *OPTIONS))}, callbacks)"


ELSEWHERE = {
    "learning_rate": "lr",
    "num_rounds": "rounds",
    "num_epochs": "epochs",
    "local_steps": "shared_steps",
    "local_epochs": "shared_steps",
    "optimizer": "local_optimizer",
    "fraction_fit": "participation",
    "mu": "proximal",
}
"""What settings are called in papers and other libraries."""


def _given_as(name: str) -> str:
    if name in TOP:
        return f"{name}=..."
    group, key = _PLACES[name]
    made = f"fgn.{GROUPS[group].__name__}({key}=...)"
    return f"callbacks=[{made}]" if group in RECORDED else f"{group}={made}"


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings stored in a manifest, with the default of every setting that it lacks."""
    return {**asdict(Settings()), **stored}
