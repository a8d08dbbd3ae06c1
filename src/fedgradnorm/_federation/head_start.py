"""The answer that a linear head begins with: the best one that knows nothing of the input."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence

import torch
from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._streamed.rows import StreamedTargets, all_targets

log = logging.getLogger("fedgradnorm")


def random_because(client: Client, settings: Settings, in_common: bool = False) -> str:
    """Why a head that we make begins at random; empty where it begins at the client's targets.

    With ``auto`` that is whatever keeps its first answer from being known, told, or of use. A head
    that is ``in_common`` with others is made by the server in a deployment, which knows no targets.
    """
    if settings.head_start != "auto":
        return "" if settings.head_start == "targets" else "head_start = 'random'"
    if client.privacy is not None:
        return "privacy: the account has no mean of targets"
    if in_common:
        return "in common: a server knows no targets"
    if not client.task.knows_trivial:
        return "a loss or kind of one's own"
    if isinstance(client.train[1], StreamedTargets):
        return "targets that are read with their rows"
    return ""


def log_starts(clients: Iterable[Client], settings: Settings, common: Container[str] = ()) -> None:
    """Say in one line how heads begin; ``common`` names the clients that share theirs."""
    found: dict[str, list[str]] = {}
    for client in clients:
        why = random_because(client, settings, client.name in common)
        how = f"at random ({why})" if why else "at the mean or the class shares of the targets"
        found.setdefault("as given" if client.head is not None else how, []).append(client.name)
    parts = [
        f"{how}: {', '.join(names) if len(names) <= SHOWN else f'{len(names)} clients'}"
        for how, names in found.items()
    ]
    log.info("heads begin %s", "; ".join(parts))


SHOWN = 10
"""Clients that are named in the log; of more, their number."""


def trivial_answer(client: Client) -> Tensor:
    """The outputs with the least loss that are the same for all rows of a client.

    For squared error this is the mean of the training targets. For cross-entropy it is the
    logarithm of the classes' shares, for binary cross-entropy the log odds of a 1; every class
    counts once more than it was seen, so that a class nobody saw has a share too.
    """
    return client.task.trivial(all_targets(client.train[1]))


def _trivial_answers(clients: Sequence[Client]) -> Tensor:
    """A row for each; those of clients with alike tasks and as many rows are found together."""
    alike: dict[object, list[int]] = {}
    for row, client in enumerate(clients):
        y, task = client.train[1], client.task
        together = isinstance(y, Tensor) and task.is_plain and not task.class_weights()
        key = (task.form, task.outputs, y.shape, y.dtype) if together else row
        alike.setdefault(key, []).append(row)
    found: list[Tensor] = [torch.empty(0)] * len(clients)
    for rows in alike.values():
        some, answers = [clients[row] for row in rows], None
        if len(rows) > 1:
            answers = some[0].task.trivials(torch.stack([client.train[1] for client in some]))
        each = map(trivial_answer, some) if answers is None else answers.unbind()
        for row, answer in zip(rows, each, strict=True):
            found[row] = answer.reshape(-1)
    return torch.stack(found)


@torch.no_grad()
def start_at_targets(biases: Tensor, clients: Sequence[Client]) -> None:
    """Let the biases of heads, a row each, be the clients' trivial answers.

    Outputs without one, such as a number that no row has, stay as they were drawn.
    """
    answers = _trivial_answers(clients).to(biases)
    biases.copy_(torch.where(answers.isfinite(), answers, biases))
