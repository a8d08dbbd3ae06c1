"""Private clients before a run: the rounds they plan for, the cost of a round, what is rejected."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.plan import Plan
from fedgradnorm._privacy.terms import Privacy
from fedgradnorm._round.local_update import LocalSpec
from fedgradnorm._round.settings import FIELDS, Settings, key_of, scope_of
from fedgradnorm.models._streamed import Streamed
from fedgradnorm.tasks._task import Task
from fedgradnorm.weighting import Needs, Weighting

REAL_LOSS = 4.0  # of a row of standardized numbers: two standard deviations off


def planned(clients: Sequence[Client], settings: Settings) -> list[Client]:
    """The clients; private ones know the number of rounds they plan for."""
    if not any(client.privacy for client in clients):
        return list(clients)
    rounds = expected_rounds(settings, settings.total_rounds([client.drawn for client in clients]))
    return [c if c.privacy is None else with_rounds(c, c.privacy, rounds) for c in clients]


def with_rounds(client: Client, terms: Privacy, rounds: int) -> Client:
    """A client that plans for so many rounds, unless its own terms say how many."""
    return replace(client, privacy=replace(terms, rounds=terms.rounds or rounds))


def expected_rounds(settings: Settings, rounds: int) -> int:
    """Rounds in which a client participates: with a drawn share, mean plus two deviations."""
    share = settings.participation
    if not isinstance(share, (int, float)) or share >= 1:
        return rounds
    likely = rounds * share + 2 * math.sqrt(rounds * share * (1 - share))
    return min(rounds, math.ceil(likely))


def plan_of(client: Client, how: LocalSpec, batch_size: int | None) -> Plan:
    """What a private client, whose rounds are planned, releases.

    Everything computed from one batch costs as much as one sum with a step's noise: see
    :mod:`fedgradnorm._round.private.private_gradients`.
    """
    terms = client.privacy
    assert terms is not None
    assert terms.rounds is not None
    rate = min(batch_size or client.size, client.size) / client.size
    first = terms.loss_share > 0 and how.first_loss == "dataset"
    return Plan(rate, how.steps, terms.rounds, first)


def loss_bound(task: Task, terms: Privacy) -> float:
    """The clipping bound of one example's loss; the default does not depend on the data."""
    if terms.loss_clip is not None:
        return terms.loss_clip
    usual = REAL_LOSS if task.has_real_targets else 2 * math.log(task.classes or 2)
    return task.loss_scale * usual


def losses_sent(weighting: Weighting) -> tuple[str, ...]:
    """Which of a client's losses the method reads."""
    return tuple(weighting.losses) if Needs.LOSS in weighting.needs else ()


def check_private(clients: Sequence[Client], settings: Settings, losses: Collection[str]) -> None:
    """A ConfigError if a private client would reveal something outside its budget.

    ``losses`` are those that the method reads of each client: see :func:`losses_sent`.
    """
    for client in clients:
        if client.privacy is not None:
            _check_one(client, client.privacy, settings, losses)


def _check_one(client: Client, terms: Privacy, settings: Settings, losses: Collection[str]) -> None:
    where = f"client {client.name!r} has privacy"
    try:
        terms.check_delta(client.size, "training examples")
    except ConfigError as error:
        raise ConfigError(f"client {client.name!r}: {error}") from None
    if client.of is not None:
        raise ConfigError(
            f"{where}, and it is one of the tasks of client {client.of!r}: their examples are the "
            "same, and the accounting does not add them up; make a client of each task, with "
            "examples of its own"
        )
    if isinstance(client.train[0], Streamed):
        raise ConfigError(
            f"{where}: its examples are read batch by batch, and private batches are drawn from "
            "examples in memory; give it arrays, such as np.array(x)"
        )
    if client.stem is not None or not isinstance(client.train[0], Tensor):
        raise ConfigError(
            f"{where}: per-example gradients need a network with one tensor of inputs, and no stem"
        )
    for name in FIELDS:
        scope, value = scope_of(name), getattr(settings, name)
        if scope.leaks and value not in (scope.safe, "auto"):  # which leaves it to what is safe
            raise ConfigError(
                f"{where}, and {key_of(name)} = {value!r} {scope.leaks}; leave it at {scope.safe!r}"
            )
    for what in learned_from_examples(client):
        raise ConfigError(
            f"{where}, and {what} learned from its training examples without noise; "
            f"{WAYS_OUT[what]}"
        )
    if terms.loss_share == 0 and "loss" in losses:
        raise ConfigError(
            f"{where} with loss_share = 0, so it reports no loss, but the method weights clients "
            "by their losses; give it a loss_share such as 0.1"
        )


WAYS_OUT = {
    "class weights are": "list them: class_weights = [1.0, 3.0]",
    "the scaling is": "give public constants: standardize = { mean = [...], std = [...] }",
    "the encoding of its columns is": (
        "list the categories (categories = { NAME = [...] }), and do not fill gaps with a mean, a "
        "median or an indicator"
    ),
    "the list of its classes is": "list them: labels = [...], or give their number: classes = N",
}
"""What may have been learned from examples, and how to supply it as public constants instead."""


def learned_from_examples(client: Client) -> list[str]:
    """What of a client would reveal something of its examples: the keys of ``WAYS_OUT``.

    A scaling or an encoding whose class does not tell (``learned``) counts as learned.
    """
    weighted = client.task.class_weights()
    found = {
        "class weights are": isinstance(weighted.get("given"), str),
        "the scaling is": getattr(client.scaling, "learned", client.scaling is not None),
        "the encoding of its columns is": getattr(
            client.encoding, "learned", client.encoding is not None
        ),
        "the list of its classes is": client.labels_learned,
    }
    return [what for what, so in found.items() if so]
