"""Every kind of task in a deployment: the run of one process, and results that predict."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
import toys
from engines.flower.direct import OPTIONS, Together
from fedgradnorm._flower.trying import try_federation
from fedgradnorm.experiments import load_config

X = np.random.default_rng(3).normal(size=(40, toys.FEATURES))


def clients() -> list[fgn.Client]:
    three, two = (X[:, 0] > 0.5).astype(int) + (X[:, 0] > 1.2), (X[:, 1] > 0.8).astype(int)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    given = {
        "balanced": (fgn.classification(3, class_weights="balanced"), three, None),
        "rare": (fgn.binary(pos_weight="balanced"), two, ("no", "yes")),
        "tags": (fgn.multilabel(2), (X[:, :2] > 0).astype(int), ("hot", "loud")),
        "smooth": (fgn.classification(2, loss=smooth), two, None),
    }
    return [
        fgn.Client(name, task, (X, y), labels=names) for name, (task, y, names) in given.items()
    ]


def test_the_same_run_as_in_one_process_and_results_that_predict(tmp_path) -> None:
    together = Together(tmp_path, fgn.GradNorm(), clients=clients)
    shared = together.run()
    alone = flat.train(
        toys.network(), clients(), weighting=fgn.GradNorm(), executor="loop", **OPTIONS
    )
    assert torch.equal(shared, toys.parameters(alone.network))
    for name, result in together.results().items():
        for kind in ("class", "probability", "output"):
            assert (result.predict(name, X, kind=kind) == alone.predict(name, X, kind=kind)).all()
        if result.clients[name].labels:
            pair = (run.predict(name, X, kind="label").tolist() for run in (result, alone))
            assert next(pair) == next(pair)
        stored, known = (r.manifest["clients"][name].get("class_weights") for r in (result, alone))
        assert stored == known


def test_a_client_with_several_tasks_is_refused(tmp_path) -> None:
    y = {"state": (X[:, 0] > 0).astype(float), "hours": 4 * X[:, 2]}
    tasks = {"state": fgn.binary(), "hours": fgn.regression(1)}
    pump = fgn.Client("pump", tasks=tasks, train=(X, y))
    says = "client 'pump' has 2 tasks; .* give each task to a client of its own"
    with pytest.raises(fgn.ConfigError, match=says):
        Together(tmp_path, clients=lambda: [pump])
    with pytest.raises(fgn.ConfigError, match=says):
        try_federation(load_config("demo", ["rounds=2"]), list(pump.rows), tmp_path)
    assert not (tmp_path / "federation").exists()


class Pairs(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int):
        return X[row], 4 * X[row, 2:3]


def test_rows_that_are_read_batch_by_batch(tmp_path) -> None:
    np.save(tmp_path / "x.npy", X)
    labels = (X[:, 0] > 0).astype(int)

    def given(streamed: bool) -> list[fgn.Client]:
        x = np.load(tmp_path / "x.npy", mmap_mode="r") if streamed else X
        numbers = Pairs() if streamed else (X, 4 * X[:, 2:3])
        return [
            fgn.Client("map", fgn.classification(2), (x, labels), validation=(x, labels)),
            fgn.Client("items", fgn.regression(1), numbers),
        ]

    how = {"head_init": "targets"}  # "auto" reads no Dataset for it
    shared = Together(tmp_path / "rooms", fgn.GradNorm(), clients=lambda: given(True), **how).run()
    how = {"executor": "loop", **how, **OPTIONS}
    alone = flat.train(toys.network(), given(False), weighting=fgn.GradNorm(), **how)
    assert torch.equal(shared, toys.parameters(alone.network))
