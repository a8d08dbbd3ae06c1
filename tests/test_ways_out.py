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
from torch.utils.data import DataLoader, TensorDataset

import fedgradnorm as fgn
import toys
from fedgradnorm.experiments import load_config, run

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
Y = X[:, 0]
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(town="Ulm")
LOADER = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))


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
    "DataLoader as x": (lambda: client(LOADER), r"give loader\.dataset"),
    "text column": (lambda: client(FRAME), r"row 0, column 3 is 'Ulm'.*fgn.data.Table"),
    "texts": (lambda: client(FRAME[["town"]].to_numpy(str)), r"'Ulm': .*fgn.data.Table"),
    "sparse matrix": (lambda: client(scipy.sparse.csr_matrix(X)), r"give x\.toarray\(\)"),
    "sparse tensor": (lambda: client(torch.from_numpy(X).to_sparse()), r"give x\.to_dense\(\)"),
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
