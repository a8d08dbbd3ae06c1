"""What ``predict`` gives: classes, names, probabilities, outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm.data import client_from_arrays

X = np.random.default_rng(3).normal(size=(40, toys.FEATURES))
ASKED = X[:7]
TARGETS: dict[str, tuple[fgn.Task, Any, tuple[str, ...] | None]] = {
    "classes": (fgn.classification(3), np.arange(40) % 3, ("low", "middle", "high")),
    "binary": (fgn.binary(), (X[:, 0] > 0).astype(int), ("no", "yes")),
    "tags": (fgn.multilabel(2), (X[:, :2] > 0).astype(int), ("hot", "loud")),
    "plain": (fgn.classification(2), np.arange(40) % 2, None),
}


@pytest.fixture(scope="module", params=["trained", "loaded"])
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> fgn.Run:
    given = [fgn.Client(n, task, (X, y), labels=names) for n, (task, y, names) in TARGETS.items()]
    numbers = client_from_arrays("number", fgn.regression(1), (X, 9 + X[:, 0]), standardize=True)
    clients = [*given, numbers]
    made = flat.train(toys.network(), clients, rounds=20, lr=0.05, device="cpu")
    if request.param == "trained":
        return made
    return fgn.load(made.save(tmp_path_factory.mktemp("runs") / "run"))


def test_without_a_kind_it_is_the_class_or_the_value(run: fgn.Run) -> None:
    for name in TARGETS:
        assert (run.predict(name, ASKED) == run.predict(name, ASKED, kind="class")).all()
    value = run.predict("number", ASKED)
    assert (value == run.predict("number", ASKED, kind="output")).all()
    assert value.mean() > 4  # in the units of the targets


@pytest.mark.parametrize("name", TARGETS)
def test_outputs_are_the_heads_own(run: fgn.Run, name: str) -> None:
    output = run.predict(name, ASKED, kind="output")
    assert output.shape == (7, TARGETS[name][0].outputs)
    assert (output == run.predict(name, ASKED, outputs=True)).all()


def test_probabilities_are_by_softmax_or_sigmoid(run: fgn.Run) -> None:
    classes = run.predict("classes", ASKED, kind="probability")
    np.testing.assert_allclose(classes.sum(axis=1), 1)
    assert (classes.argmax(axis=1) == run.predict("classes", ASKED)).all()
    for name in ("binary", "tags"):
        p = run.predict(name, ASKED, kind="probability")
        assert p.shape == run.predict(name, ASKED).shape
        assert ((p > 0.5) == run.predict(name, ASKED)).all()
        logits = run.predict(name, ASKED, kind="output").reshape(p.shape)
        np.testing.assert_allclose(p, 1 / (1 + np.exp(-logits)))


def test_labels_are_the_clients_names(run: fgn.Run) -> None:
    for name in ("classes", "binary"):
        names, classes = TARGETS[name][2], run.predict(name, ASKED)
        assert names is not None
        assert run.predict(name, ASKED, kind="label").tolist() == [names[i] for i in classes]
    tags = run.predict("tags", X, kind="label")
    for row, found in zip(run.predict("tags", X), tags, strict=True):
        assert found == tuple(n for n, one in zip(("hot", "loud"), row, strict=True) if one)
    assert len(tags) == 40
    full = X[run.predict("tags", X).all(axis=1)]
    assert len(full) > 1
    assert run.predict("tags", full, kind="label").tolist() == [("hot", "loud")] * len(full)


def test_tensors_in_tensors_out_and_names_in_an_array(run: fgn.Run) -> None:
    x = torch.as_tensor(ASKED)
    for kind in ("class", "probability", "output"):
        assert isinstance(run.predict("binary", x, kind=kind), torch.Tensor)
    assert isinstance(run.predict("binary", x, kind="label"), np.ndarray)


def test_every_class_has_a_name_or_none_has() -> None:
    with pytest.raises(fgn.DataError, match="client 'a': 1 labels for 2 classes"):
        fgn.Client("a", fgn.binary(), (X, np.arange(40) % 2), labels=("yes",))


def test_a_saved_run_that_lost_a_name_says_so(run: fgn.Run) -> None:
    short = replace(run.clients["classes"], labels=("low", "high"))
    lost = replace(run, clients={**run.clients, "classes": short})
    with pytest.raises(fgn.ConfigError, match="2 names for 3 classes; use kind='class'"):
        lost.predict("classes", ASKED, kind="label")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("number", {"kind": "class"}, "client 'number' predicts numbers, and has no class"),
        ("number", {"kind": "probability"}, "has no probability; use kind='output'"),
        ("plain", {"kind": "label"}, "client 'plain' has no names of its classes"),
        ("plain", {"kind": "labels"}, "did you mean 'label'"),
        ("plain", {"kind": 3}, "kind must be"),
        ("plain", {"kind": "class", "outputs": True}, "both given; choose one"),
    ],
)
def test_what_a_client_has_not_is_named(run: fgn.Run, name: str, options: Any, said: str) -> None:
    with pytest.raises(fgn.ConfigError, match=said):
        run.predict(name, ASKED, **options)
