"""Runs of clients that soon memorize their few rows, so that when to stop matters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import fedgradnorm as fgn
import flat
import toys

ROUNDS, EVERY = 45, 3


def clients(without: str = "") -> list[fgn.Client]:
    """So few training rows that each client soon memorizes them."""
    return [
        replace(
            toys.client(name, size),
            validation=None if name == without else toys.rows(name, 41),
        )
        for name, size in zip(toys.NAMES, (24, 20, 20), strict=True)
    ]


def paired_clients() -> list[fgn.Client]:
    """The same, and one more that shares the task of one of them."""
    corner, side, place = clients()
    named = replace(side, task=replace(side.task, name="side"))
    return [corner, named, place, replace(named, name="side too", train=toys.rows("side", 26))]


def train(without: str = "", network: Any = toys.network, **more: Any) -> fgn.Run:
    how = {"rounds": ROUNDS, "eval_every": EVERY, "batch_size": 8, "lr": 0.05, "device": "cpu"}
    start = {"head_init": "random"}  # from there clients have different best rounds
    how = {"executor": "loop", "weighting": fgn.GradNorm(lr=0.02), **start, **how, **more}
    return flat.train(network(), clients(without), **how)


def losses(run: fgn.Run, round_number: int | None = None, split: str = "validation") -> dict:
    frame = run.history[run.history.split == split]
    last = frame["round"].max() if round_number is None else round_number
    return frame[frame["round"] == last].set_index("client").loss.to_dict()


def gains(run: fgn.Run) -> dict[int, float]:
    """The mean gain of every evaluation, from the history alone."""
    frame = run.history[run.history.split == "validation"]
    table = frame.pivot(index="round", columns="client", values="loss")
    first = table.iloc[0]
    return ((first - table) / table.clip(lower=first, axis=1)).mean(axis=1).to_dict()


def assert_same_networks(left: fgn.Run, right: fgn.Run) -> None:
    for name in left.clients:
        one, two = left.clients[name], right.clients[name]
        assert toys.same(dict(one.head.state_dict()), dict(two.head.state_dict()))
        assert toys.same(one.buffers, two.buffers)
        networks = (run.networks[name].state_dict() for run in (left, right))
        assert toys.same(*map(dict, networks))


class Killed(BaseException):
    """As a kill: nothing is written on the way out."""


ENDS: list[type[BaseException]] = [KeyboardInterrupt, Killed]


def ending(at: int, how: type[BaseException]) -> Any:
    def stop(event: Any) -> None:
        if event.round == at:
            raise how

    return stop
