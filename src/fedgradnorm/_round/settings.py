"""Every choice of a training run that is not data, network or weighting, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._checks import bounded, flag, names, number, one_of, plain, shown, whole
from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.terms import ClientPrivacy, privacy_of
from fedgradnorm._round.local_update import FirstLoss, LocalSpec, ReportLoss, Schedule, Update
from fedgradnorm._round.lr_schedules import Rates, check_schedule, filled
from fedgradnorm._round.participation import Participation
from fedgradnorm._round.server import Aggregate, Order
from fedgradnorm._round.tuning import checked_tuning

Precision = Literal["float32", "tf32", "bf16"]
MANY = 200
"""Registered clients from which on the engines ask how many of them take part in a round."""

EngineName = Literal["auto", "loop", "vmap", "joint"]
Key = Literal["client", "task"]
Share = Literal["all", "none"]
Heads = Literal["own", "task", "all"]
HeadStart = Literal["auto", "random", "targets"]
Keep = Literal["last", "best", "own_best"]
Check = Callable[[str, object], Any]
MOST_EPOCHS = 1e12


@dataclass(frozen=True)
class Settings:
    """The settings of :func:`fedgradnorm.train`, which documents each of them."""

    rounds: int | None = None
    epochs: float | None = None
    batch_size: int | None = 64
    head_steps: int = 1
    shared_steps: int = 1
    lr: float = 2e-4
    head_optimizer: str | dict[str, Any] = "adam"
    server_optimizer: str | dict[str, Any] = "adam"
    local_optimizer: str | dict[str, Any] = "sgd"
    server_schedule: str | dict[str, Any] | list[Any] | None = None
    head_schedule: str | dict[str, Any] | list[Any] | None = None
    clip: float | None = None
    head_clip: float | None = None
    first_loss: FirstLoss = "dataset"
    update: Update = "gradient"
    report_loss: ReportLoss = "before"
    schedule: Schedule = "alternating"
    proximal: float = 0.0
    final_head_steps: int = 0
    heads: Heads = "own"
    head_own: str | list[str] | None = None
    head_start: HeadStart = "auto"
    personalize: dict[str, Any] | None = None
    ditto: float = 0.0
    aggregate: Aggregate = "mean"
    order: Order = "new"
    key: Key = "client"
    share: Share = "all"
    participation: Participation = 1.0
    shared: str | list[str] = "*"
    frozen: str | list[str] | None = None
    privacy: ClientPrivacy | dict[str, Any] | None = None
    gauge: str | list[str] | None = None
    engine: EngineName = "auto"
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    seed: int = 0
    log_every: int = 1
    eval_every: int | None = None
    keep: Keep = "last"
    patience: int | None = None
    checkpoint_every: int | None = None
    record_conflict: int = 0
    eval_clients: int | float | None = None
    record_clients: int | list[str] | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.personalize is not None:
            table = checked_tuning("personalize", self.personalize, self.lr)
            object.__setattr__(self, "personalize", table)
        if self.ditto and self.share == "none":
            raise ConfigError("ditto pulls toward the shared network; share='none' has none")
        if self.patience is not None and not self.keeps_best:
            raise ConfigError(
                f"patience = {self.patience} ends a run whose best state is kept; "
                "give keep = 'best' too, or leave patience out"
            )
        if self.eval_clients is not None and self.keeps_best:
            raise ConfigError(
                f"keep = {self.keep!r} compares the validation losses of the same clients in each "
                "evaluation, and eval_clients draws others each time; leave eval_clients out, or "
                "use keep = 'last'"
            )
        if self.head_own is not None and self.heads == "own":
            raise ConfigError(
                f"head_own = {shown(self.head_own)} says what clients keep of a head that they "
                "share, and heads = 'own' shares none; use heads = 'task' or 'all', or leave "
                "head_own out"
            )
        if self.rounds is not None and self.epochs is not None:
            raise ConfigError("give rounds or epochs, not both")
        self.local().head_rates.at(2)
        self.server_rates().at(2)

    @property
    def keeps_best(self) -> bool:
        """Whether evaluations are chosen from: for all clients, or by each for itself."""
        return self.keep != "last"

    @property
    def chooses_alone(self) -> bool:
        """Whether clients may end with what each has trained alone; without sharing all do."""
        return self.share == "all" and bool((self.personalize or {}).get("alone"))

    def alone(self) -> Settings:
        """The same with nothing shared; what takes a server, or tunes its network, is left out."""
        return replace(
            self,
            share="none",
            personalize=None,
            ditto=0.0,
            heads="own",
            head_own=None,
            key="client",
            aggregate="mean",
            record_conflict=0,
            privacy=None,
            engine="auto" if self.engine == "joint" else self.engine,
        )

    @property
    def client_privacy(self) -> ClientPrivacy | None:
        """What is promised to clients."""
        terms: ClientPrivacy | None = privacy_of(self.privacy, ClientPrivacy)
        return terms

    def local(self) -> LocalSpec:
        """What concerns a client, with optimisers resolved."""
        return LocalSpec(
            self.head_steps,
            self.shared_steps,
            self.first_loss,
            self.update,
            self.report_loss,
            self.schedule,
            optimizers.resolve(self.head_optimizer, self.lr),
            optimizers.resolve(self.local_optimizer, self.lr),
            self.proximal,
            self.head_schedule,
            self.clip,
            self.head_clip,
            self.rounds,
        )

    def server_rates(self) -> Rates:
        """The rate of the server's optimiser in each round."""
        table = optimizers.resolve(self.server_optimizer, self.lr)
        return Rates(self.server_schedule, table, self.rounds)

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
        """Whether there are many clients, of which at most half take part in a round."""
        plan = self.participation
        if isinstance(plan, (int, float)):
            most = round(plan * clients)
        else:
            most = max(len(turn) if isinstance(turn, list) else len(plan) for turn in plan)
        return clients >= MANY and 2 * most <= clients

    def records_conflict(self, round_number: int) -> bool:
        """Whether the conflict between clients is recorded in this round, the first being 0."""
        return self.record_conflict > 0 and round_number % self.record_conflict == 0


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings stored in a manifest, with the default of every setting that it lacks."""
    return {**asdict(Settings()), **stored}


_LEAST = {
    "final_head_steps": 0,
    "head_steps": 0,
    "shared_steps": 1,
    "seed": 0,
    "log_every": 1,
    "record_conflict": 0,
}
_LEAST_IF_GIVEN = {
    "rounds": 1,
    "batch_size": 1,
    "eval_every": 0,
    "patience": 1,
    "checkpoint_every": 1,
}
_CHOICES = {
    "first_loss": FirstLoss,
    "update": Update,
    "report_loss": ReportLoss,
    "schedule": Schedule,
    "aggregate": Aggregate,
    "order": Order,
    "key": Key,
    "share": Share,
    "heads": Heads,
    "head_start": HeadStart,
    "keep": Keep,
    "engine": EngineName,
    "precision": Precision,
}


def _of_kind(kind: Any, name: str, value: object) -> str:
    return one_of(name, value, get_args(kind))


def _at_least(least: int, name: str, value: object) -> int:
    return whole(name, value, least)


def _if_given(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _epochs(name: str, value: object) -> float:
    if not 0 < (given := number(name, value)) <= MOST_EPOCHS:
        raise ConfigError(f"{name} must be > 0 and at most {MOST_EPOCHS:g}, not {shown(value)}")
    return given


def _participation(name: str, value: object) -> Participation:
    if not isinstance(value, list | tuple):
        if not 0 < (given := number(name, value)) <= 1:
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


def _client_privacy(_: str, value: object) -> dict[str, Any]:
    return {k: v for k, v in vars(privacy_of(value, ClientPrivacy)).items() if v is not None}


def _one_or_names(name: str, value: object) -> str | list[str]:
    return value if isinstance(value, str) else names(name, value)


def _device(name: str, value: object) -> str:
    if not isinstance(value, str | torch.device):
        raise ConfigError(f"{name} must be a text such as 'cpu' or 'cuda:0', not {shown(value)}")
    return str(value)


_CHECKS: dict[str, Check] = {
    **{name: partial(_of_kind, kind) for name, kind in _CHOICES.items()},
    **{name: partial(_at_least, least) for name, least in _LEAST.items()},
    **{name: _if_given(partial(_at_least, least)) for name, least in _LEAST_IF_GIVEN.items()},
    "compile": flag,
    **dict.fromkeys(("proximal", "ditto"), bounded),
    **dict.fromkeys(("head_optimizer", "server_optimizer", "local_optimizer"), plain),
    **dict.fromkeys(("server_schedule", "head_schedule"), check_schedule),
    **dict.fromkeys(("clip", "head_clip"), _if_given(partial(bounded, above=True))),
    "lr": number,
    "epochs": _if_given(_epochs),
    "participation": _participation,
    "shared": _one_or_names,
    **dict.fromkeys(("frozen", "gauge", "head_own"), _if_given(_one_or_names)),
    "privacy": _if_given(_client_privacy),
    "device": _device,
    "eval_clients": _if_given(_some_clients),
    "record_clients": _if_given(_number_or_names),
}
"""What each setting must be. A check gives the value back, as Python's own kind of it."""


def allowed(name: str) -> str:
    """Which values a setting takes, in words, beside what its type says.

    >>> allowed("batch_size"), allowed("engine")
    ('1 or more', '')
    """
    least = {**_LEAST, **_LEAST_IF_GIVEN}.get(name)
    return _RANGES.get(name, "") if least is None else f"{least} or more"


_RANGES = {
    **dict.fromkeys(("proximal", "ditto"), "0 or more"),
    **dict.fromkeys(("lr", "clip", "head_clip"), "above 0"),
    "epochs": f"above 0, at most {MOST_EPOCHS:g}",
    "participation": "a share above 0 and at most 1, or names",
    "eval_clients": "1 or more clients, or a share above 0 and at most 1",
    "record_clients": "0 or more clients, or names",
}
