"""The data and the networks of the golden runs: plain arrays and modules, made from seeds.

Nothing here knows the package: ``adapter.py`` makes its clients of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[Any]
FEATURES, WIDE, TOKENS, SIDE = 6, 9, 9, (4, 3)
PROBES = 5
"""Rows that every client predicts at the end."""


@dataclass(frozen=True)
class Goal:
    """One task of a client: a name in ``KINDS``, and options of its making."""

    what: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """One client: its tasks (most have one), how many rows it has, and what is special about it."""

    name: str
    goals: Mapping[str, Goal]
    size: int = 30
    form: str = "rows"
    gaps: bool = False
    validation: bool = False
    streamed: bool = False
    standardize: bool = False
    several: bool = False
    stem: str | None = None
    head: str | None = None
    privacy: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Split:
    """Inputs, and targets by the name of the task."""

    x: Any
    y: Mapping[str, Array]


KINDS: dict[str, tuple[str, int]] = {
    "classes": ("classification", 3),
    "two": ("binary", 1),
    "labels": ("multilabel", 3),
    "stars": ("ordinal", 4),
    "numbers": ("regression", 2),
    "number": ("regression", 1),
    "own kind": ("own", 2),
}
"""The kind of task behind every name, and how many classes, labels or outputs it has."""


def splits(member: Member) -> dict[str, Split]:
    """All rows of a client; its name and size decide the seed."""
    sizes = {"train": member.size, "validation": 12 * member.validation, "test": 14}
    return {name: _split(member, name, size) for name, size in sizes.items() if size}


def probes(member: Member) -> Any:
    """The inputs that a client predicts at the end: the first of its test rows."""
    return _first(splits(member)["test"].x, PROBES)


def _first(x: Any, count: int) -> Any:
    return {key: part[:count] for key, part in x.items()} if isinstance(x, dict) else x[:count]


def _split(member: Member, name: str, size: int) -> Split:
    letters = sum((i + 1) * ord(letter) for i, letter in enumerate(member.name + name))
    generator = np.random.default_rng(1000 * letters + size)
    x, latent = _inputs(member.form, size, generator)
    y = {key: _targets(goal, latent, generator) for key, goal in member.goals.items()}
    if member.gaps and name == "train":
        y = {key: _with_gaps(values, generator) for key, values in y.items()}
    return Split(x, y)


def _inputs(form: str, size: int, generator: np.random.Generator) -> tuple[Any, Array]:
    """Inputs of a form, and the numbers that targets are made of."""
    if form in ("images", "maps"):
        x = generator.normal(size=(size, 2, *SIDE))
        return x, x if form == "maps" else x.reshape(size, -1)[:, :FEATURES]
    if form == "tokens":
        tokens = generator.integers(TOKENS, size=(size, FEATURES))
        return tokens, (tokens - TOKENS // 2) / 2.0
    if form == "steps":
        lengths = generator.integers(1, 5, size=size)
        steps = [generator.normal(size=(length, FEATURES)) for length in lengths]
        return steps, np.stack([one.mean(axis=0) for one in steps])
    x = generator.normal(size=(size, WIDE if form == "wide" else FEATURES))
    return {"input": x} if form == "named" else x, x[:, :FEATURES]


def _targets(goal: Goal, z: Array, generator: np.random.Generator) -> Array:
    """Targets of one task; each class is among the first rows."""
    noise = 0.2 * generator.normal(size=z[:, 0].shape)
    score = z[:, 0] + 0.5 * z[:, 1] + noise
    if goal.what in ("classes", "two", "stars"):
        edges = {"classes": [-0.4, 0.4], "two": [0.0], "stars": [-0.7, 0.0, 0.7]}[goal.what]
        found = np.digitize(score, edges).astype(float)
        for place in range(len(edges) + 1):
            found[place] = place
        return found
    if goal.what == "labels":
        return (np.stack([score, z[:, 1], score - z[:, 1]], axis=1) > 0).astype(float)
    if goal.what == "number":
        return score + 0.5 * z[:, 0] * z[:, 1]
    return np.stack([20 * z[:, 1] + score, 10 * score], axis=1)


def _with_gaps(y: Array, generator: np.random.Generator) -> Array:
    """The same with a few missing labels; the first rows keep theirs."""
    y = y.copy()
    y[5:][generator.random(size=y[5:].shape) < 0.2] = np.nan
    return y


def absolute(output: Tensor, target: Tensor) -> Tensor:
    """A loss of one's own: the sum of absolute errors of every row."""
    return (output - target).abs().sum(dim=1)


def worst(output: Tensor, target: Tensor) -> Tensor:
    """A metric of one's own: the largest error."""
    return (output - target).abs().max()


def one(name: str, what: str, size: int = 30, /, task: str | None = None, **more: Any) -> Member:
    """A client with one task; ``options`` are the task's, ``task`` its name."""
    options = dict(more.pop("options", {}))
    if task is not None:
        options["name"] = task
    return Member(name, {"only": Goal(what, options)}, size, **more)


def _all_kinds(**more: Any) -> list[Member]:
    return [
        one("classes", "classes", 48, **more),
        one("two", "two", 30, **more),
        one("labels", "labels", 36, **more),
        one("stars", "stars", 40, **more),
        one("numbers", "numbers", 24, **more),
    ]


def _several() -> list[Member]:
    goals = {"kind": Goal("classes"), "place": Goal("numbers")}
    other = {"yes": Goal("two"), "size": Goal("number"), "kind": Goal("classes")}
    return [
        Member("first", goals, 32, several=True),
        Member("second", other, 26, several=True),
        one("third", "labels", 24),
    ]


def _special() -> list[Member]:
    return [
        one("balanced", "classes", 40, options={"class_weights": "balanced"}),
        one("weighed", "classes", 30, options={"class_weights": [1.0, 3.0, 2.0]}),
        one("positive", "two", 34, options={"pos_weight": 3.0, "metrics": ["f1"]}),
        one("labels", "labels", 28, options={"pos_weight": "balanced", "loss_scale": 4.0}),
        one("absolute", "numbers", 26, options={"loss": absolute, "metrics": {"worst": worst}}),
        one("own", "own kind", 24),
    ]


def promise(epsilon: float, noise: float) -> dict[str, float]:
    """Terms of a client that protects its rows."""
    return {"epsilon": epsilon, "delta": 1e-3, "noise_multiplier": noise}


FEDERATIONS: dict[str, Callable[[], list[Member]]] = {
    "kinds": _all_kinds,
    "three": lambda: [
        one("classes", "classes", 44), one("two", "two", 25), one("numbers", "numbers", 20)
    ],
    "validated": lambda: _all_kinds(validation=True),
    "gaps": lambda: _all_kinds(gaps=True),
    "several": _several,
    "several gaps": lambda: [replace(member, gaps=True) for member in _several()],
    "special": _special,
    "grouped": lambda: [
        one("a", "classes", 40, task="sort"),
        one("b", "classes", 26, task="sort"),
        one("c", "number", 32, task="size"),
        one("d", "classes", 20, task="sort"),
        one("e", "number", 24, task="size"),
    ],
    "same": lambda: [one(name, "classes", size, task="sort")
                     for name, size in zip("abcd", (40, 26, 32, 20), strict=True)],
    "images": lambda: [
        one(f"image {what}", what, size, form="images")
        for what, size in (("classes", 36), ("two", 24), ("numbers", 20))
    ],
    "maps": lambda: [
        one(f"map {what}", what, size, form="maps", options={"shape": SIDE})
        for what, size in (("classes", 20), ("labels", 24), ("numbers", 22))
    ],
    "tokens": lambda: [
        one("classes", "classes", 36, form="tokens"), one("number", "number", 30, form="tokens")
    ],
    "steps": lambda: [
        one(what, what, size, form="steps")
        for what, size in (("classes", 30), ("two", 22), ("number", 26))
    ],
    "named": lambda: [
        one(what, what, size, form="named")
        for what, size in (("classes", 30), ("stars", 22), ("number", 26))
    ],
    "standardized": lambda: [
        one(what, what, size, standardize=True)
        for what, size in (("classes", 30), ("numbers", 22), ("number", 26))
    ],
    "stems": lambda: [
        one("classes", "classes", 40),
        one("two", "two", 24, form="wide", stem="wide"),
        one("number", "number", 28, stem="square"),
        one("numbers", "numbers", 24, form="wide", stem="wide"),
    ],
    "own heads": lambda: [
        one("classes", "classes", 40, head="deep"),
        one("number", "number", 30, head="no bias"),
        one("stars", "stars", 26),
    ],
    "streamed": lambda: [
        one(what, what, size, streamed=what != "two")
        for what, size in (("classes", 36), ("two", 24), ("number", 30))
    ],
    "private rows": lambda: [
        one("classes", "classes", 48, privacy=promise(8.0, 1.0)),
        one("two", "two", 30),
        one("number", "number", 36, privacy=promise(6.0, 2.0)),
    ],
    "crowd": lambda: [
        one(f"c{i:03}", ("classes", "two", "number")[i % 3], 6 + i % 4) for i in range(204)
    ],
}  # fmt: skip
"""Clients by the name of a federation."""


class OverSteps(nn.Module):
    """A recurrent network over sequences; a padded step leaves the state as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(FEATURES, 5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 5)
        for step in range(x.shape[1]):
            state = torch.where(mask[:, step, None], self.cell(x[:, step], state), state)
        return state


def _twice() -> nn.Module:
    layer = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.ReLU(), nn.Linear(FEATURES, 5))


def _half_frozen() -> nn.Module:
    network = NETWORKS["dense"]()
    network.get_parameter("0.bias").requires_grad_(False)
    return network


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Sequential(
        nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh()
    ),
    "relu": lambda: nn.Sequential(
        nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 5)
    ),
    "batch norm": lambda: nn.Sequential(
        # A bias before the norm would have no gradient but rounding, which Adam would blow up.
        nn.Linear(FEATURES, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 5)
    ),
    "layer norm": lambda: nn.Sequential(
        nn.Linear(FEATURES, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 5)
    ),
    "dropout": lambda: nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 5)
    ),
    "twice": _twice,
    "half frozen": _half_frozen,
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 5), nn.ReLU()
    ),
    "pooled": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    ),
    "maps": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 1)),
    "tokens": lambda: nn.Sequential(
        nn.Embedding(TOKENS, 2), nn.Flatten(), nn.Linear(2 * FEATURES, 5), nn.Tanh()
    ),
    "steps": OverSteps,
}  # fmt: skip
"""Shared networks by name."""

PARTS: dict[str, Callable[[Sequence[Goal]], nn.Module]] = {
    "wide": lambda _: nn.Sequential(nn.Linear(WIDE, FEATURES), nn.Tanh()),
    "square": lambda _: nn.Linear(FEATURES, FEATURES),
    "deep": lambda goals: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, _width(goals))),
    "no bias": lambda goals: nn.Linear(5, _width(goals), bias=False),
}
"""Clients' own first parts and heads, by name."""


def _width(goals: Sequence[Goal]) -> int:
    return KINDS[goals[0].what][1]


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A module in float64 whose start values are the same on every processor.

    PyTorch's own start values are drawn in float32, and rounded as the processor's instructions
    have it: NumPy draws these.
    """
    with torch.random.fork_rng(devices=[]):
        module = make().double()
    generator = np.random.default_rng(seed)
    for name, values in module.named_parameters():
        if values.dim() > 1:
            bound = values[0].numel() ** -0.5
        elif name.endswith("weight"):  # of a normalisation, which begins at ones
            continue
        else:
            bound = 0.3
        drawn = generator.uniform(-bound, bound, size=tuple(values.shape))
        values.data.copy_(torch.from_numpy(drawn))
    return module


def network(name: str) -> nn.Module:
    """The shared network of this name, new."""
    return seeded(NETWORKS[name])


def part(member: Member, name: str) -> nn.Module:
    """A client's own first part, or head, of this name."""
    goals = list(member.goals.values())
    return seeded(lambda: PARTS[name](goals), seed=len(member.name))
