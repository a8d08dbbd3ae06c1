"""Every kind of task in a deployment: the run of one process, and results that predict."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import torch
from torch import nn

import fedgradnorm as fgn
import toys
from engines.flower.direct import OPTIONS, Together

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
    alone = fgn.train(toys.network(), clients(), weighting=fgn.GradNorm(), engine="loop", **OPTIONS)
    assert torch.equal(shared, toys.parameters(alone.network))
    for name, result in together.results().items():
        for kind in ("class", "probability", "output"):
            assert (result.predict(name, X, kind=kind) == alone.predict(name, X, kind=kind)).all()
        if result.clients[name].labels:
            pair = (run.predict(name, X, kind="label").tolist() for run in (result, alone))
            assert next(pair) == next(pair)
        stored, known = (r.about["clients"][name].get("class_weights") for r in (result, alone))
        assert stored == known
