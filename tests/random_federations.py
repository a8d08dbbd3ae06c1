"""Federations that nobody thought of: drawn by hypothesis, small enough to train in a moment.

A federation is drawn dimension by dimension. To add one, add a field to :class:`Drawn` or
:class:`DrawnClient` with a strategy of its values in ``FEDERATION`` or ``CLIENT``, and let
``network``, ``client`` or ``options`` below do something with it. The test that uses them, in
``test_random_federations.py``, stays as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

import fedgradnorm as fgn
import toys
from fedgradnorm.weighting._loss_based import InverseFirstLoss

FEATURES, SIDE, TOKENS = 6, (4, 3), 9
ROUNDS = 3


class Away(fgn.tasks.Kind):
    """A custom kind: absolute error."""

    name = "apart"

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).abs().mean(dim=1)


KINDS = ("classes", "weighted", "binary", "labels", "ordered", "numbers", "own loss", "own kind")


@dataclass(frozen=True)
class DrawnClient:
    """One client; ``kinds`` are those of its tasks, of which there may be several."""

    kinds: tuple[str, ...]
    size: int
    gaps: bool  # whether labels are missing
    loud: bool  # whether its losses are ten times larger
    several: bool  # whether it has a table of tasks, though there may be one only
    stem: bool  # whether it has a first part of its own


@dataclass(frozen=True)
class Drawn:
    """A federation, before it is made."""

    body: str  # a network of vectors, or of images whose targets have a shape
    clients: tuple[DrawnClient, ...]
    weighting: str
    batch_size: int | None
    head_steps: int
    shared_steps: int
    phases: str
    participation: float
    head_optimizer: str
    parts: str  # what of the network is shared
    rates: str  # whether learning rates follow a schedule
    clip: float | None
    form: str  # what inputs are: one array, a dict, sequences, or token ids
    twins: bool  # whether every client is there twice, with other examples
    steady: bool  # whether the local optimizer's momentum is kept across rounds
    sends: str
    keep: str  # the last round, the best one, or each client's own best
    around: str  # one network, with Ditto's personal ones, or none that is shared
    registered: str  # few clients, or so many that their rows are made when they are asked for
    seed: int


CLIENT = {
    "kinds": st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True).map(tuple),
    "size": st.integers(6, 14),
    "gaps": st.booleans(),
    "loud": st.booleans(),
    "several": st.booleans(),
    "stem": st.sampled_from([False, False, False, True]),
}
FEDERATION = {
    "body": st.sampled_from(["dense", "smooth", "statistics", "dropping", "images", "images"]),
    "clients": st.lists(st.builds(DrawnClient, **CLIENT), min_size=1, max_size=3).map(tuple),
    "weighting": st.sampled_from(["paper", "direct", "equal", "inverse"]),
    "batch_size": st.sampled_from([2, 5, None]),
    "head_steps": st.integers(1, 2),
    "shared_steps": st.sampled_from([1, 1, 2]),
    "phases": st.sampled_from(["alternating", "alternating", "joint"]),
    "participation": st.sampled_from([1.0, 1.0, 0.5, 0.34]),
    "head_optimizer": st.sampled_from(["adam", "sgd"]),
    "parts": st.sampled_from(["all", "all", "frozen", "private"]),
    "rates": st.sampled_from(["constant", "scheduled"]),
    "clip": st.sampled_from([None, None, 0.5]),
    "form": st.sampled_from(["plain", "plain", "named", "named", "steps", "tokens"]),
    "twins": st.booleans(),
    "steady": st.booleans(),
    "sends": st.sampled_from(["gradient", "gradient", "delta", "model"]),
    "keep": st.sampled_from(["last", "last", "best", "own_best"]),
    "around": st.sampled_from(["shared", "shared", "shared", "ditto", "alone"]),
    "registered": st.sampled_from(["few", "many"]),
    "seed": st.integers(0, 2**20),
}
DRAWN = st.builds(Drawn, **FEDERATION)
PARTS: dict[str, dict[str, Any]] = {
    "all": {},
    "frozen": {"frozen": "*0.bias"},
    "private": {"shared": "!*0.bias"},
}
KEEP: dict[str, dict[str, Any]] = {
    "last": {},
    "best": {"keep": "best", "eval_every": 1},
    "own_best": {"keep": "own_best", "eval_every": 1},
}
AROUND: dict[str, dict[str, Any]] = {
    "shared": {},
    "ditto": {"ditto": 0.5},
    "alone": {"share": "none"},
}
RATES: dict[str, dict[str, Any]] = {
    "constant": {},
    "scheduled": {
        "server_schedule": "cosine",
        "head_schedule": {"name": "StepLR", "step_size": 2},
    },
}


class OverSteps(nn.Module):
    """The body of the mean of a sequence's steps."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        real = mask[..., None].to(x.dtype)
        return self.body((x * real).sum(dim=1) / real.sum(dim=1))


def form(drawn: Drawn) -> str:
    """The form of inputs; images are arrays."""
    return "plain" if drawn.body == "images" and drawn.form in ("steps", "tokens") else drawn.form


def network(drawn: Drawn) -> nn.Module:
    """The shared network, in float64."""
    makers = {
        "dense": lambda: nn.Sequential(nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, 5)),
        "smooth": lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh()),
        # a bias right before BatchNorm has no gradient but rounding, which Adam makes a step of
        "statistics": lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.BatchNorm1d(5)),
        "dropping": lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.2), nn.Tanh()),
        "images": lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 1)
        ),
    }
    return toys.seeded(lambda: _in_form(drawn, makers[drawn.body]()))


def _in_form(drawn: Drawn, body: nn.Sequential) -> nn.Module:
    """The body behind what makes vectors of inputs that are none."""
    if form(drawn) == "steps":
        return OverSteps(body)
    if form(drawn) == "tokens":
        layers = {"look": nn.Embedding(TOKENS, 1), "flat": nn.Flatten()}
        return nn.Sequential(OrderedDict({**layers, **dict(body.named_children())}))
    return body


def inputs(drawn: Drawn, rows: int, seed: int) -> Any:
    """Rows that the network takes."""
    return _formed(drawn, _numbers(drawn, rows, seed))


def _formed(drawn: Drawn, x: np.ndarray) -> Any:
    """Numbers in the form of inputs; a keyword of nn.Sequential is ``input``."""
    if form(drawn) == "tokens":
        return np.clip(np.round(2 * x) + TOKENS // 2, 0, TOKENS - 1).astype(int)
    if form(drawn) == "steps":
        lengths = (np.abs(x[:, 0]) * 10).astype(int) % 3 + 1
        steps = [row + 0.1 * np.arange(k)[:, None] for row, k in zip(x, lengths, strict=True)]
        return fgn.sequences(steps)
    return {"input": x} if form(drawn) == "named" else x


def _numbers(drawn: Drawn, rows: int, seed: int) -> np.ndarray:
    row = (2, *SIDE) if drawn.body == "images" else (FEATURES,)
    return np.random.default_rng(seed).normal(size=(rows, *row))


def weighting(drawn: Drawn) -> fgn.Weighting:
    made: Mapping[str, fgn.Weighting] = {
        "paper": fgn.GradNorm(),
        "direct": fgn.GradNorm(rule="direct"),
        "equal": fgn.Equal(),
        "inverse": InverseFirstLoss(),
    }
    return made[drawn.weighting]


def options(drawn: Drawn) -> dict[str, Any]:
    """Settings of ``fgn.train``."""
    names = ("batch_size", "head_steps", "shared_steps", "phases", "participation", "sends")
    return {
        "seed": drawn.seed,
        "local_optimizer": {"name": "sgd", "momentum": 0.5 * drawn.steady, "keep": drawn.steady},
        **{name: getattr(drawn, name) for name in names},
        "head_optimizer": drawn.head_optimizer,
        "clip": drawn.clip,
        "head_clip": drawn.clip,
        **PARTS[drawn.parts],
        **KEEP[drawn.keep],
        **AROUND[drawn.around],
        **RATES[drawn.rates],
        "rounds": ROUNDS,
        "lr": 0.01,
        "device": "cpu",
    }


def clients(drawn: Drawn) -> list[fgn.Client]:
    """All clients, made anew: the same ones every time."""
    those = drawn.clients * (2 if drawn.twins else 1)
    return [_client(drawn, one, place) for place, one in enumerate(those)]


def _client(drawn: Drawn, one: DrawnClient, place: int) -> fgn.Client:
    x = _numbers(drawn, one.size + 6, drawn.seed + place)
    made = {kind: _task(drawn, one, kind, x, place) for kind in one.kinds}
    first, rest = (_formed(drawn, part) for part in np.split(x, [one.size]))
    stem = _stem(drawn) if one.stem and form(drawn) in ("plain", "named") else None
    train, test = slice(one.size), slice(one.size, None)
    if one.several or len(made) > 1:
        y = {kind: values for kind, (_, values) in made.items()}
        return fgn.Client(
            f"c{place}",
            tasks={kind: task for kind, (task, _) in made.items()},
            train=(first, {kind: values[train] for kind, values in y.items()}),
            test=(rest, {kind: values[test] for kind, values in y.items()}),
            validation=(rest, {kind: values[test] for kind, values in y.items()}),
            stem=stem,
        )
    ((task, values),) = made.values()
    splits = (first, values[train]), (rest, values[test])
    return fgn.Client(f"c{place}", task, *splits, validation=splits[1], stem=stem)


def _stem(drawn: Drawn) -> nn.Module:
    """A first part that leaves the shape of rows as it is."""
    images = drawn.body == "images"
    return toys.seeded(lambda: nn.Conv2d(2, 2, 1) if images else nn.Linear(FEATURES, FEATURES))


def _task(
    drawn: Drawn, one: DrawnClient, kind: str, x: np.ndarray, place: int
) -> tuple[fgn.Task, np.ndarray]:
    """A task and its targets, some of them missing; the first rows are labelled."""
    images = drawn.body == "images"
    about = {"loss_scale": 10.0 if one.loud else 1.0, "shape": SIDE if images else ()}
    z = x if images else x[:, :2]
    score, pair = z[:, 0] + 0.3 * z[:, 1], np.stack([z[:, 0], 3 * z[:, 1]], axis=1)
    three = (score > -0.3).astype(float) + (score > 0.5)
    three[:3] = np.arange(3).reshape(3, *[1] * (three.ndim - 1))  # every class is there
    two = np.minimum(three, 1)
    found = {
        "classes": lambda: (fgn.classification(3, **about), three),
        "weighted": lambda: (fgn.classification(3, class_weights="balanced", **about), three),
        "binary": lambda: (fgn.binary(pos_weight=3.0, **about), two),
        "labels": lambda: (fgn.multilabel(2, **about), (pair > 0).astype(float)),
        "ordered": lambda: (fgn.ordinal(3, **about), three),
        "numbers": lambda: (fgn.regression(2, **about), pair),
        "own loss": lambda: (fgn.classification(3, loss=_own_loss, **about), three),
        "own kind": lambda: (fgn.tasks.of_kind(Away, 2, **about), pair),
    }
    task, y = found[kind]()
    if one.gaps:
        lost = np.random.default_rng((drawn.seed, place, len(kind)))
        y = y.copy()
        whole = kind.startswith("own")
        y[3:][lost.random(len(y) - 3) < 0.4] = np.nan
        if not whole:
            y[3:][lost.random(y[3:].shape) < 0.2] = np.nan
        y[one.size :][:1] = 0.0  # a test split without a label is refused
    return task, y


def _own_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none", label_smoothing=0.1)
