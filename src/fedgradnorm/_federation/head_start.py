"""The answer that a linear head begins with: the best one that knows nothing of the input."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence

import torch
from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._federation.head_averaging import own_names
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._streamed.rows import StreamedTargets, all_targets

log = logging.getLogger("fedgradnorm")


def random_because(client: Client, settings: Settings, in_common: bool = False) -> str:
    """Why a head that we make begins at random; empty where it begins at the client's targets.

    With ``auto`` that is whatever keeps its first answer from being known, told, or of use. A head
    that is ``in_common`` with others is made by the server in a deployment, which knows no targets;
    a bias that the client keeps for itself (``head_own``) is made by the client, which does.
    """
    if settings.head_start != "auto":
        return "" if settings.head_start == "targets" else "head_start = 'random'"
    if client.privacy is not None:
        return "privacy: the account has no mean of targets"
    if in_common and not own_names(["bias"], settings.head_own):
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


AT_ONCE = 1000  # clients whose targets are stacked
SHOWN = 10
"""Clients that are named in the log; of more, their number."""


def trivial_answer(client: Client) -> Tensor:
    """The outputs with the least loss that are the same for all rows of a client.

    For squared error this is the mean of the training targets. For cross-entropy it is the
    logarithm of the classes' shares, for binary cross-entropy the log odds of a 1; every class
    counts once more than it was seen, so that a class nobody saw has a share too.
    """
    return client.task.trivial(all_targets(client.train[1]))


def _alike(clients: Sequence[Client]) -> list[list[int]]:
    """Numbers of clients with alike tasks and targets of one shape; others are by themselves."""
    found: dict[object, list[int]] = {}
    kinds: dict[int, object] = {}  # by the task's id: many clients have one task
    for row, client in enumerate(clients):
        y, task = client.train[1], client.task
        if (kind := kinds.get(id(task))) is None:
            plain = task.is_plain and not task.class_weights()
            kind = kinds[id(task)] = (task.form, task.outputs) if plain else ()
        together = kind and isinstance(y, Tensor)
        found.setdefault((kind, y.shape, y.dtype) if together else row, []).append(row)
    return list(found.values())


def _trivial_answers(clients: Sequence[Client]) -> Tensor:
    """A row for each of some clients that are alike."""
    answers = None
    if len(clients) > 1:
        answers = clients[0].task.trivials(torch.stack([client.train[1] for client in clients]))
    if answers is None:
        answers = torch.stack([trivial_answer(client) for client in clients])
    return answers.reshape(len(clients), -1)


@torch.no_grad()
def start_at_targets(biases: Tensor, clients: Sequence[Client]) -> None:
    """Let the biases of heads, a row each, be the clients' trivial answers.

    Outputs without one, such as a number that no row has, stay as they were drawn.
    """
    for alike in _alike(clients):
        for start in range(0, len(alike), AT_ONCE):
            rows = alike[start : start + AT_ONCE]
            here = slice(None) if len(rows) == len(clients) else rows
            answers = _trivial_answers([clients[row] for row in rows]).to(biases)
            biases[here] = torch.where(answers.isfinite(), answers, biases[here])
