"""A network of one's own at the end: a client tunes a private copy on its own rows.

Source: fine-tuning after federated training, as in Yu, Bagdasaryan and Shmatikov, "Salvaging
federated learning by local adaptation" (2020), with the step chosen by the client's own validation
rows. Step 0 is among those to choose from, so a client's validation loss never grows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._checks import bounded, flag, names, one_of, plain, shown, whole
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._round.client_round import Batch, Rows
from fedgradnorm._round.client_state import ClientState
from fedgradnorm._round.evaluation import evaluate
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import call
from fedgradnorm.tasks._task import Task

MEASURED = 20
"""How often the validation loss is measured on the way, about."""


MEANINGS = {
    "steps": "steps at most, 1 or more; 0 is allowed with alone",
    "lr": "learning rate, above 0; training.lr by default",
    "what": '"head", "network" (both), or a list of layers beside the head',
    "alone": "whether each client also trains alone, and chooses",
}
"""The keys of ``personalize``."""


def checked_tuning(name: str, value: object, lr: float) -> dict[str, Any]:
    """The table ``personalize`` with every key in it; a ConfigError unless it is one.

    ``alone`` is in it only where it is on: so a run from before there was the key is the same run.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} must be a table such as {{'steps': 200, 'lr': {lr:g}, 'what': 'head'}}, "
            f"not {shown(value)}"
        )
    table = {"steps": 200, "lr": lr, "what": "head", "alone": False}
    for key in value:
        choose(key if isinstance(key, str) else shown(key), MEANINGS, f"key of {name}")
    table |= plain(name, value)
    what = table["what"]
    parts = (
        one_of(f"{name}.what", what, ("head", "network"))
        if isinstance(what, str)
        else names(f"{name}.what", what)
    )
    rate = bounded(f"{name}.lr", table["lr"], above=True)
    alone = {"alone": True} if flag(f"{name}.alone", table["alone"]) else {}
    steps = whole(f"{name}.steps", table["steps"], 0 if alone else 1)
    return {"steps": steps, "lr": rate, "what": parts, **alone}


@dataclass(frozen=True)
class Tuning:
    """How clients tune: so many steps of an optimiser on the head and these of the parameters.

    ``first`` is the number of the first batch, counted from the run's start.
    """

    steps: int
    optimizer: Mapping[str, Any]
    parameters: tuple[str, ...]
    first: int

    @property
    def every(self) -> int:
        """Steps between two measurements of the validation loss."""
        return max(1, self.steps // MEASURED)


class _Chosen:
    """The step that a client likes best so far, and what it had then."""

    def __init__(self, state: ClientState, network: FlatNetwork, loss: float) -> None:
        self.state, self.network, self.before = state, network, state.own
        self.take(0, loss)

    def take(self, step: int, loss: float) -> None:
        """Choose what the client has now."""
        self.step, self.loss = step, loss
        self.vector = self.network.vector.clone()
        self.head = copy.deepcopy(dict(self.state.head.state_dict()))
        self.own = [p.detach().clone() for p in self.state.parameters()]
        stem = self.state.stem
        self.stem = {} if stem is None else copy.deepcopy(dict(stem.state_dict()))
        self.buffers = self.network.buffers()

    def offer(self, step: int, loss: float) -> None:
        """Choose it if it is better; of equal ones the earlier stays."""
        if math.isfinite(loss) and not self.loss <= loss:
            self.take(step, loss)

    def put_back(self, own: bool) -> None:
        """Give the client what was chosen: head, statistics and, if any of it moved, network.

        A client that had a network of its own already keeps it where nothing moved.
        """
        self.state.head.load_state_dict(self.head)
        for parameter, value in zip(self.state.parameters(), self.own, strict=True):
            parameter.data.copy_(value)
        if self.state.stem is not None:
            self.state.stem.load_state_dict(self.stem)
        self.state.buffers = self.buffers
        self.state.own = self.vector if own and self.step else self.before


def tune(
    task: Task,
    state: ClientState,
    network: FlatNetwork,
    batch: Batch,
    held_out: Rows | None,
    how: Tuning,
) -> dict[str, Any]:
    """Tune one client's head and its copy of the network; what it kept, for run.json.

    ``network`` is a scratch copy that holds the network and the statistics that the client has now.
    Without validation rows (``held_out``) the last step is taken, if its numbers are finite.
    """

    def measured() -> float:
        if held_out is None:
            return math.nan
        return evaluate(task, front, state.head, *held_out)["loss"]

    front = state.front(network.module)
    before = measured()
    chosen, step = _Chosen(state, network, before), _stepper(task, state, network, batch, how)
    for number in range(1, how.steps + 1):
        step(number - 1)
        if number % how.every == 0 or number == how.steps:
            chosen.offer(number, measured())
    if held_out is None and _finite(state, network):
        chosen.take(how.steps, math.nan)
    chosen.put_back(own=bool(how.parameters))
    if held_out is None:
        return {"step": chosen.step}
    return {"step": chosen.step, "before": _or_none(before), "after": _or_none(chosen.loss)}


def _stepper(
    task: Task, state: ClientState, network: FlatNetwork, batch: Batch, how: Tuning
) -> Callable[[int], None]:
    """A function that makes one step, on the batch of that number.

    What is private to the client moves with the head. A network of which nothing else moves is in
    evaluation mode, as for FedBABU's heads.
    """
    wanted, front = set(how.parameters), state.front(network.module)
    moved = [p for name, p in network.module.named_parameters() if name in wanted]
    optimizer = optimizers.build([*state.parameters(), *moved], how.optimizer)

    def step(number: int) -> None:
        front.train(bool(moved))
        state.head.train()
        x, y = batch(number)
        network.gradient.zero_()  # of which parameters keep their views
        for parameter in state.parameters():
            parameter.grad = None
        with torch.set_grad_enabled(bool(moved) or state.reaches_in):
            features = call(front, x)
        task.loss(state.head(features), y).backward()
        optimizer.step()

    return step


def _finite(state: ClientState, network: FlatNetwork) -> bool:
    """Whether all numbers that the client has now can be used."""
    heads = (*state.head.state_dict().values(), *state.parameters())
    parts = (network.vector, *heads, *network.buffers().values())
    return all(bool(torch.isfinite(part).all()) for part in parts)


def _or_none(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
