"""Mistakes of a first hour: each message says what to write instead."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fedgradnorm as fgn
import toys
from fedgradnorm._round.executor import Executor
from fedgradnorm.experiments import load_config, run

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
Y = X[:, 0]
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(town="Ulm")
LOADER = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))


class Items(Dataset[Any]):
    """As PyTorch asks for them: nothing says after which item there is none."""

    asked = 0

    def __len__(self) -> int:
        return 30

    def __getitem__(self, row: int) -> torch.Tensor:
        self.asked += 1
        assert self.asked <= 100, "NumPy asks without end"
        return torch.ones(3)


ENDLESS = Items()


TABLE = FRAME[["a", "b", "c"]]
SHUFFLED = pd.Series(Y).sample(frac=1, random_state=0)


class Named(fgn.Weighting):
    """Returns a list, which has no order of its own; says nothing of what it needs."""

    def weigh(self, signals: fgn.Signals) -> Any:
        return [1.0] * len(signals.active)


class Falling(fgn.Weighting):
    needs = fgn.Needs.LOSS

    def weigh(self, signals: fgn.Signals) -> torch.Tensor:
        return -signals.loss


class Unmade(fgn.Weighting):
    def __init__(self, power: float) -> None:  # no super().__init__()
        self.power = power

    def weigh(self, signals: fgn.Signals) -> torch.Tensor:
        return signals.loss**self.power


class Several(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x


def client(x: Any = X, y: Any = Y, name: str = "a") -> fgn.Client:
    return fgn.Client(name, fgn.regression(1), (x, y))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU())


def trained(*clients: Any, **options: Any) -> fgn.Run:
    return fgn.train(network(), list(clients), rounds=1, **options)


PUMPS = fgn.data.Table("a.csv", fgn.data.Target("y", "regression"))
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "labels from 1": (
        lambda: fgn.Client("a", fgn.classification(3), (X, np.arange(30) % 3 + 1)),
        r"labels must be 0 \.\. 2; yours begin at 1: give y - 1",
    ),
    "Table": (lambda: trained(PUMPS), r"not Table; give clients\[0\]\.client\(name\)"),
    "DataLoader": (
        lambda: fgn.Client("a", fgn.regression(1), LOADER),  # type: ignore[arg-type]
        r"not DataLoader; give loader\.dataset",
    ),
    "a Dataset among named inputs": (
        lambda: client({"a": ENDLESS, "b": X}),
        r"x\['a'\] is a Dataset; give one Dataset of pairs \(x, y\) as the whole split",
    ),
    "a Dataset as the targets of a task": (
        lambda: fgn.Client("a", tasks={"one": fgn.regression(1)}, train=(X, {"one": ENDLESS})),
        "task 'one': y is a Dataset; give one Dataset of pairs",
    ),
    "DataLoader as x": (lambda: client(LOADER), r"give loader\.dataset"),
    "text column": (lambda: client(FRAME), r"row 0, column 3 is 'Ulm'.*fgn.data.Table"),
    "texts": (lambda: client(FRAME[["town"]].to_numpy(str)), r"'Ulm': .*fgn.data.Table"),
    "sparse matrix": (lambda: client(scipy.sparse.csr_matrix(X)), r"give x\.toarray\(\)"),
    "sparse tensor": (lambda: client(torch.from_numpy(X).to_sparse()), r"give x\.to_dense\(\)"),
    "dates": (
        lambda: client(TABLE.assign(when=pd.Timestamp("2024-01-01"))),
        r"there are dates in it: fgn\.data\.Table",
    ),
    "a whole table": (
        lambda: fgn.Client("a", fgn.regression(1), FRAME),  # type: ignore[arg-type]
        r"not DataFrame alone: give \(frame\[inputs\], frame\[target\]\)",
    ),
    "rows in another order": (
        lambda: client(TABLE, SHUFFLED),
        r"client 'a', train data: .* same index in another order.* y\.loc\[x\.index\]",
    ),
    "rows in another order, of several tasks": (
        lambda: fgn.Client("a", tasks={"one": fgn.regression(1)}, train=(TABLE, {"one": SHUFFLED})),
        "same index in another order",
    ),
    "a split of another name": (
        lambda: fgn.Client("a", fgn.regression(1), (X, Y), valid=(X, Y)),  # type: ignore[call-overload]
        r"Client\(\) takes no 'valid'; did you mean 'validation'\?",
    ),
    "a number in a text": (
        lambda: fgn.classification("2"),  # type: ignore[arg-type]
        "at least 2 outputs, not '2'; give a whole number",
    ),
    "labels as classes": (
        lambda: fgn.classification(["no", "yes"]),  # type: ignore[arg-type]
        r"names are given as labels=\['no', 'yes'\]",
    ),
    "weighting by name": (
        lambda: trained(client(), weighting="fedprox"),
        r"a method is given as method='fedprox'",
    ),
    "weights in a list": (
        lambda: trained(client(), weighting=Named()),
        r"weighting Named: weigh must return a tensor of shape \(1,\), not list",
    ),
    "negative weights": (
        lambda: trained(client(), weighting=Falling()),
        "weighting Falling: weigh returned -.*must not be negative",
    ),
    "a weighting that was not made": (
        lambda: trained(client(), weighting=Unmade(0.5)),
        r"weighting Unmade: call super\(\)\.__init__\(\)",
    ),
    "needs in words": (
        lambda: type("Worded", (Named,), {"needs": "loss"}),
        r"needs of weighting Worded must be of fgn\.Needs, .* not 'loss'",
    ),
    "an optimizer's class": (
        lambda: fgn.Local(head_optimizer=torch.optim.SGD),  # type: ignore[arg-type]
        r"local\.head_optimizer must be a name such as 'sgd', .* not <class",
    ),
    "an optimizer's option": (
        lambda: trained(client(), local={"head_optimizer": {"name": "sgd", "momentun": 0.9}}),
        "unknown option of optimizer 'sgd': 'momentun'; did you mean 'momentum'",
    ),
    "a group's setting": (
        lambda: fgn.Local(lr=0.1),  # type: ignore[call-arg]
        r"'lr' belongs to no group: give it as lr=\.\.\.",
    ),
    "a name from elsewhere": (
        lambda: trained(client(), num_rounds=3),
        r"'num_rounds' is called rounds here: rounds=\.\.\.",
    ),
    "a name from nowhere": (
        lambda: trained(client(), save_dir="x"),
        r"unknown setting 'save_dir' \(one of: rounds, epochs, lr, seed, local, .*callbacks\)",
    ),
    "benefit's keywords": (
        lambda: fgn.benefit(network(), [client()], progress=True),
        r"benefit\(\) takes no 'progress': .*fgn\.ShowProgress\(\)",
    ),
    "other settings for a resumed run": (
        lambda: fgn.resume("runs/x", network(), [client()], rounds=9),  # type: ignore[call-arg]
        r"resume\(\) takes no 'rounds': .*fgn\.train\(fgn\.load\(folder\), clients, \.\.\.\)",
    ),
    "a network with several outputs": (
        lambda: fgn.train(Several(3, 4), [client()], rounds=1),
        "returns tuple for 2 rows; .* let forward return one tensor",
    ),
    "no folder to load": (
        lambda: fgn.load(None),  # type: ignore[arg-type]
        "must be the path of a run's folder, not None",
    ),
    "an executor that is none": (
        lambda: Executor("mine", 3).register(),  # type: ignore[arg-type]
        "executor 'mine' needs functions",
    ),
    "a setting's name in the record": (
        lambda: load_config("table2", ["eval_every=2"]),
        r"unknown key 'eval_every'; did you mean 'evaluation\.every'",
    ),
    "a name from elsewhere in a config": (
        lambda: load_config("table2", ["learning_rate=2"]),
        "unknown key 'learning_rate'; did you mean 'lr'",
    ),
    "a client whose history is wanted": (
        lambda: trained(client(), callbacks=[fgn.History(clients=["b"])]),
        "unknown client in history.clients 'b'",
    ),
    "a switch": (
        lambda: load_config("table2", ["keep_best=maybe"]),
        "keep_best must be true, false or a table of its settings, not 'maybe'",
    ),
    "texts among numbers": (
        lambda: fgn.data.Table(FRAME, fgn.data.Target("a", "regression")).client("x"),
        r"column 'town' is 'Ulm', not a number; .* read its texts with categories=\['town'\]",
    ),
    "measurements as classes": (
        lambda: fgn.data.Table(TABLE, fgn.data.Target("a", "classification")).client("x"),
        r"30 different numbers such as .* are no classes; use task='regression'",
    ),
    "a column as target": (
        lambda: fgn.data.Table(FRAME, "a"),  # type: ignore[arg-type]
        r"target must be fgn\.data\.Target\(column, task\), .* not 'a'",
    ),
    "rows of a table that is none": (
        lambda: fgn.data.Table(
            {"a": [1]},  # type: ignore[arg-type]
            fgn.data.Target("a", "regression"),
        ).client("x"),
        "train must be a path or a DataFrame, not {'a'",
    ),
    "widths of inputs": (
        lambda: trained(client(), client(X[:, :2], name="b")),
        r"client 'b': .* of one shape, so change .* a stem of its own",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_has_a_way_out(mistake: str) -> None:
    call, words = MISTAKES[mistake]
    with pytest.raises(fgn.FedGradNormError, match=words):
        call()


def test_clients_are_told_apart_by_who_they_are() -> None:
    one, other = client(), client()
    assert one != other
    assert len({one, other, one}) == 2
    run = trained(one)
    with pytest.raises(fgn.ConfigError, match=r"unknown client Client\('a': .*one of: a\)"):
        run.predict(one, X)  # type: ignore[arg-type]


def test_a_benefit_the_other_way_round_is_refused() -> None:
    tested = [dataclasses.replace(client(), test=(X, Y))]
    found = fgn.benefit(network(), tested, rounds=1)
    with pytest.raises(fgn.ConfigError, match=r"joined\.benefit\(alone, clients\)"):
        found.alone.benefit(found.joined, tested)


def test_rows_with_other_indexes_are_paired_by_position() -> None:
    later = pd.Series(Y, index=range(100, 100 + len(Y)))
    assert torch.equal(client(TABLE, later).train[1], client().train[1])


def test_a_misspelt_public_name_is_known_to_python() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PcGrad'") as caught:
        _ = fgn.weighting.PcGrad
    assert (caught.value.name, caught.value.obj) == ("PcGrad", fgn.weighting)  # its hint's source


def test_a_task_says_in_one_line_what_it_is() -> None:
    task = fgn.classification(labels=["no", "yes"], name="side")
    assert repr(task) == "Task('side', classification, 2 classes)"


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="the device is there")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(
        fgn.ConfigError, match=r"'mps' cannot be used here .*use 'cpu'.*'auto'"
    ) as e:
        trained(client(), compute=fgn.Compute(device="mps"))
    assert len(str(e.value)) < 250


def test_widths_are_a_list(tmp_path: Path) -> None:
    text = 'rounds = 1\n[data]\nsource = "faces"\n[network]\nname = "mlp"\nwidths = 32\n'
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(fgn.ConfigError, match=r"widths must be a list.*widths = \[32\]"):
        run(load_config(tmp_path / "a.toml"), folder=tmp_path / "run")


def test_an_unknown_schedule_lists_those_by_round() -> None:
    with pytest.raises(fgn.ConfigError, match="unknown schedule 'cosin'") as caught:
        trained(client(), server=fgn.Server(server_schedule="cosin"))
    assert "_lr" not in str(caught.value)
    assert "cosine" in str(caught.value)


def test_the_summary_of_a_run_without_clients_of_its_own() -> None:
    """As of a federation's server, whose clients keep their heads."""
    done = fgn.train(toys.network(), toys.clients(), rounds=2)
    without = dataclasses.replace(done, clients={})
    assert list(without.summary().index) == list(done.clients)
    unnamed = dataclasses.replace(without, manifest={**done.manifest, "clients": {}})
    assert list(unnamed.summary().index) == list(done.clients)  # those that reported
    nothing = dataclasses.replace(unnamed, table=type(done.table)(()))
    assert not len(nothing.summary())


def test_a_folder_does_not_lower_the_level_of_others(tmp_path: Path) -> None:
    """A root logger at WARNING gets warnings alone; the run's own log has INFO lines."""
    heard: list[logging.LogRecord] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record)

    listener, root, ours = Listener(), logging.getLogger(), logging.getLogger("fedgradnorm")
    before = root.level, ours.level, ours.propagate
    for place in (root, ours):
        place.addHandler(listener)
    try:
        root.setLevel(logging.WARNING)
        fgn.train(toys.network(), toys.clients(), rounds=2, folder=tmp_path / "run")
        ours.getChild("later").warning("a warning")
        assert [record.levelname for record in heard if record.levelno < logging.WARNING] == []
        assert [record.getMessage() for record in heard][-2:] == ["a warning"] * 2
        assert (ours.level, ours.propagate) == before[1:]
    finally:
        for place in (root, ours):
            place.removeHandler(listener)
        root.setLevel(before[0])
    assert " INFO " in (tmp_path / "run" / "log.txt").read_text()
