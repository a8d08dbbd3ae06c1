"""A golden case carried out with the package: the one file here that knows its interface.

What comes back are arrays under names that do not depend on the package's own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

import fedgradnorm as fgn
from fedgradnorm._methods import find_method
from fedgradnorm._round.settings import FIELDS, keywords
from golden import recipes
from golden.cases import Case
from golden.recipes import Member, Split

Result = dict[str, NDArray[np.float64]]

REPORTED = {
    "loss": "loss",
    "loss_ratio": "loss_ratio",
    "grad_norm": "gradient_norm",
    "weight": "weight",
    "active": "active",
    "weight_frozen": "frozen",
    "samples": "examples",
    "epsilon: not private (seeded noise)": "epsilon",
}
"""Columns of what clients report of a round, and what they are called in a result."""
NOT_MEASURED = {"round", "epoch", "client", "split", "bytes", *REPORTED} - {"loss"}
"""Columns of the history that no evaluation fills."""
RECORD = Path(__file__).with_name("record.py")
EXECUTORS = {"stacked": "vmap", "roster": "auto"}
"""What the recorded engines are called now; many registered clients need no engine of their own."""


class Away(fgn.tasks.Kind):
    """A kind of one's own: the mean absolute error."""

    name = "away"

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).abs().mean(dim=1)


class Pairs(Dataset[Any]):
    """Rows that are read one by one."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        return self.x[place], self.y[place]


def result(case: Case) -> Result:
    """Run a case; everything that it leaves behind, as arrays of float64."""
    if case.carried == "ranks" and "RANK" not in os.environ:
        return _on_two_ranks(case)
    with tempfile.TemporaryDirectory() as folder:
        if case.carried == "flower":
            return _over_flower(case, Path(folder))
        return _of_run(_trained(case, Path(folder) / "run"), case)


def _trained(case: Case, folder: Path) -> fgn.Run:
    """The run of a case in this process (or in the ranks that this one is among)."""
    given = _given(case)
    if case.carried == "started":
        given["network"] = _train({**_given(case), "rounds": case.stop})
    if case.carried in ("resumed", "saved"):
        given["folder"] = folder
    if case.carried == "resumed":
        _stopped(given, case.stop)
        fresh = _given(case)
        rest = {"weighting": fresh["weighting"]}
        return fgn.resume(folder, fresh["network"], fresh["clients"], **rest)
    run = _train(given)
    if case.carried == "saved":
        return fgn.load(folder)
    if case.carried == "tuned":
        return run.personalize(given["clients"][0], **case.after)
    return run


def _train(given: Mapping[str, Any]) -> fgn.Run:
    """``fgn.train`` with every setting in its group."""
    settings = keywords({name: value for name, value in given.items() if name in FIELDS})
    rest = {k: v for k, v in given.items() if k not in FIELDS}
    callbacks = [*settings.pop("callbacks"), *rest.pop("callbacks", ())]
    return fgn.train(**rest, **settings, callbacks=callbacks)


def _stopped(given: Mapping[str, Any], after: int) -> None:
    """Begin a training, and interrupt it after so many rounds."""

    def stop(event: Any) -> None:
        if event.round == after:
            raise KeyboardInterrupt

    try:
        _train({**given, "callbacks": [stop]})
    except KeyboardInterrupt:
        return
    raise AssertionError(f"the run was over before round {after}")


def _given(case: Case) -> dict[str, Any]:
    """The arguments of a training, all of them new."""
    settings = dict(case.settings)
    weighting = fgn.Equal() if settings.get("share") == "none" else fgn.GradNorm()
    if case.weighting is not None:
        name, options = case.weighting
        weighting = _weightings()[name](**options)
    elif case.method is not None:
        weighting = find_method(case.method).build()
    if case.method is not None:
        settings = {**find_method(case.method).settings, **settings}
    return {
        "network": recipes.network(case.network),
        "clients": _clients(case),
        "weighting": weighting,
        "executor": EXECUTORS.get(case.engine, case.engine),
        "device": "cpu",
        **settings,
    }


def _weightings() -> dict[str, Any]:
    """The weightings of all methods, by the names of their classes."""
    made = (method.weighting for method in fgn.methods().values())
    return {one.__name__: one for one in made}


def _clients(case: Case) -> list[fgn.Client]:
    return [_client(member) for member in _members(case)]


def _members(case: Case) -> list[Member]:
    return recipes.FEDERATIONS[case.federation]()


def _client(member: Member) -> fgn.Client:
    tasks = {name: _task(goal) for name, goal in member.goals.items()}
    pairs = {name: _pair(member, split) for name, split in recipes.splits(member).items()}
    own: dict[str, Any] = {}
    if member.stem is not None:
        own["stem"] = recipes.part(member, member.stem)
    if member.head is not None:
        own["head"] = recipes.part(member, member.head)
    if member.privacy is not None:
        own["privacy"] = fgn.Privacy(**member.privacy, noise="seeded")
    if member.several:
        return fgn.Client(member.name, tasks=tasks, **pairs, **own)
    (task,) = tasks.values()
    if member.standardize:
        return fgn.data.client_from_arrays(member.name, task, **pairs, standardize=True)
    return fgn.Client(member.name, task, **pairs, **own)


def _task(goal: recipes.Goal) -> fgn.Task:
    kind, count = recipes.KINDS[goal.what]
    if kind == "own":
        return fgn.tasks.of_kind(Away, count, **goal.options)
    counted = {} if kind == "binary" else {_COUNTED[kind]: count}
    made: fgn.Task = getattr(fgn, kind)(**counted, **goal.options)
    return made


_COUNTED = {
    "classification": "classes",
    "multilabel": "labels",
    "ordinal": "classes",
    "regression": "outputs",
}


def _pair(member: Member, split: Split) -> Any:
    """A split as a client takes it: a pair, or rows that are read one by one."""
    x = fgn.sequences(split.x) if member.form == "steps" else split.x
    if member.several:
        return x, dict(split.y)
    (y,) = split.y.values()
    return Pairs(x, y) if member.streamed else (x, y)


def _of_run(run: fgn.Run, case: Case) -> Result:
    found: dict[str, Any] = {}
    if run.shared is not None:
        found["shared"] = _vector(run.shared)
    found |= _of_clients(run)
    found |= {f"weight/{name}": weight for name, weight in run.weights.items()}
    found |= _of_reports(row for row in run.table.rows if row["split"] == "batch")
    found |= _of_evaluations(row for row in run.table.rows if row["split"] != "batch")
    for row in run.quantiles.rows:
        where = (row[key] for key in ("split", "task", "quantity", "round"))
        shares = [row[key] for key in ("clients", "mean", "min", "median", "max")]
        found["/".join(map(str, ("spread", *where)))] = shares
    summary = run.summary()
    if "kept_round" in summary:
        found |= {f"kept_round/{name}": kept for name, kept in summary["kept_round"].items()}
    found |= _predictions(run, case)
    return _as_arrays(found)


def _of_clients(run: fgn.Run) -> dict[str, Any]:
    """What clients have of their own: heads, stems, states, and networks that are not shared."""
    found: dict[str, Any] = {}
    networks = run.networks
    for name, client in run.clients.items():
        head = client.head.named_parameters()
        found |= {f"head/{name}/{key}": part for key, part in head}
        found |= {f"state/{name}/{key}": part for key, part in client.buffers.items()}
        if client.stem is not None:
            found[f"stem/{name}"] = _vector(client.stem)
        if networks[name] is not run.shared:
            found[f"network/{name}"] = _vector(networks[name])
    return found


def _of_reports(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """What clients reported of each round: a list for every client and column."""
    found: dict[str, list[float]] = {}
    for row in rows:
        name = row["client"]
        found.setdefault(f"history/round/{name}", []).append(row["round"])
        for column, key in REPORTED.items():
            if column in row:
                found.setdefault(f"history/{key}/{name}", []).append(_number(row[column]))
    return found


def _of_evaluations(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Losses and metrics: a list over evaluations for every split, metric and client."""
    found: dict[str, list[float]] = {}
    for row in rows:
        split, name = row["split"], row["client"]
        found.setdefault(f"eval/{split}/round/{name}", []).append(row["round"])
        for column in row.keys() - NOT_MEASURED:
            found.setdefault(f"eval/{split}/{column}/{name}", []).append(_number(row[column]))
    return found


def _predictions(run: fgn.Run, case: Case) -> dict[str, Any]:
    """The heads' outputs for fixed inputs, of every client that the run knows."""
    found: dict[str, Any] = {}
    for member in _members(case):
        for name in run.rows_of(member.name) if member.several else [member.name]:
            if name in run.clients:
                x = recipes.probes(member)
                found[f"predictions/{name}"] = run.predict(name, x, outputs=True)
    return found


def _over_flower(case: Case, folder: Path) -> Result:
    """Server and clients in this process, with Flower's messages between them."""
    from engines.flower.direct import Together

    given = _given(case)
    for key in ("network", "clients", "executor", "eval_every"):
        given.pop(key)
    together = Together(
        folder,
        make=lambda: recipes.network(case.network),
        clients=lambda: _clients(case),
        bounds=None,
        **given,
    )
    found: dict[str, Any] = {"shared": together.run()}
    weights = together.server.server.weighting
    names = weights.clients
    found |= {f"weight/{name}": w for name, w in zip(names, weights.weight, strict=True)}
    found |= _of_reports(together.server.history.rows)
    for run in together.results().values():
        found |= _of_clients(run)
        found |= _predictions(run, case)
    return _as_arrays(found)


def _on_two_ranks(case: Case) -> Result:
    """The case in two processes under torchrun, which write down what they found."""
    from golden.record import read

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.npz"
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
                *("--master-addr", "127.0.0.1", "--master-port", str(port)),
                *(str(RECORD), str(out), "--only", case.name),
            ],
            env={**os.environ, **own},
            check=True,
            capture_output=True,
            timeout=120,
        )
        return read(out)[case.name]


def _vector(module: nn.Module) -> torch.Tensor:
    """All parameters of a module, in their order."""
    return torch.cat([part.detach().flatten() for _, part in module.named_parameters()])


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _as_arrays(found: Mapping[str, Any]) -> Result:
    plain = {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in found.items()}
    return {key: np.asarray(plain[key], dtype=np.float64) for key in sorted(plain)}
