"""Two trainings of the same clients, compared row by row; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from fedgradnorm._benefit.benefit import Benefit
from fedgradnorm._benefit.client_gain import HeldOut, client_gains
from fedgradnorm._checks import one_of, whole
from fedgradnorm._client import Client, in_column_order
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.models._streamed import all_targets, some_targets
from fedgradnorm.tasks._targets import labelled
from fedgradnorm.tasks._task import Task

if TYPE_CHECKING:
    from fedgradnorm._benefit.client_gain import Floats
    from fedgradnorm._runs.run import Run

By = Literal["score", "loss"]
"""Classes by accuracy, or everybody by the loss."""


def benefit_of(
    joined: Run, alone: Run, clients: Iterable[Client], *, by: By = "score", seed: int = 0
) -> Benefit:
    """What these clients gain by joining: the same test rows under both trainings."""
    one_of("by", by, ("score", "loss"))
    seed = whole("seed", seed, 0)
    given = testable(clients, by)
    for run, which in ((joined, "this run"), (alone, "the run trained alone")):
        _check_run(run, which, given)
    held = [_held_out(joined, alone, client, by) for client in given]
    return Benefit(tuple(client_gains(held, seed)), joined, alone, seed)


def testable(clients: object, by: By) -> list[Client]:
    """The clients as a list; an error unless all have names, test rows and a number for each."""
    if not isinstance(clients, Iterable) or isinstance(clients, str):
        raise DataError(f"clients must be a list of fgn.Client, not {type(clients).__name__}")
    given: list[Client] = []
    for one in clients:
        if not isinstance(one, Client):
            raise DataError(f"clients must be a list of fgn.Client, not of {type(one).__name__}")
        if one.tasks is not None:
            given += testable(one.rows, by)
            continue
        if any(one.name == other.name for other in given):
            raise DataError(f"two clients are named {one.name!r}; give each once")
        if one.test is None:
            raise DataError(
                f"client {one.name!r} has no test rows to measure the benefit on; give it "
                "test=(x, y), or the data source a test_share, or leave the client out"
            )
        _check_by_row(one, by)
        given.append(one)
    if not given:
        raise DataError("no clients: give at least one fgn.Client")
    return given


def _check_by_row(client: Client, by: By) -> None:
    """Rows are compared in pairs, so each needs a number of its own."""
    judged = metric_of(client.task, by)
    if judged == "loss" and client.task.joins_rows(some_targets(client.train[1])):
        raise ConfigError(
            f"client {client.name!r}: its loss is one number for all rows, and the benefit "
            'compares row by row; give a loss with reduction="none", or judge classes by="score"'
        )


def _check_run(run: Run, which: str, clients: Sequence[Client]) -> None:
    """A finished run that had these clients, with these rows."""
    if not run.finished:
        raise ConfigError(f"{which} is not finished; resume it before it is compared")
    known: dict[str, Any] = run.manifest.get("clients", {})
    for client in clients:
        if client.name not in known:
            names = ", ".join(list(known)[:5]) + (" ..." if len(known) > 5 else "")
            raise DataError(f"client {client.name!r} did not participate in {which}, only {names}")
        stored = known[client.name].get("fingerprint")
        if stored is not None and stored != client.fingerprint():
            raise DataError(
                f"client {client.name!r} had other rows in {which} than those given; give the "
                "clients that both runs were trained with"
            )


def _held_out(joined: Run, alone: Run, client: Client, by: By) -> HeldOut:
    metric = metric_of(client.task, by)
    values = (_values(run, client, metric) for run in (alone, joined))
    return HeldOut(client.name, client.task_name, metric, *values)


def metric_of(task: Task, by: By) -> str:
    """What a client is judged by: an accuracy, or the loss that it was trained on."""
    return "accuracy" if by == "score" and task.has_right_answers else task.loss_name


@torch.no_grad()
def _values(run: Run, client: Client, metric: str) -> Floats:
    """The metric of every test row; a loss without the factor that it was given."""
    if order := run.manifest["clients"][client.name].get("columns"):
        client = in_column_order(client, order)
    assert client.test is not None
    x, y = client.test[0], all_targets(client.test[1])
    if not bool((there := labelled(y)).all()):
        x, y = x[there], client.task.whole(y[there])
    output, task = run.head_outputs(client.name, x), client.task.for_targets(y)
    found = task.right(output, y) if metric == "accuracy" else None
    if found is None:
        found = task.row_losses(output, y.to(output) if y.is_floating_point() else y)
    values: Floats = found.double().numpy()
    return values
