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
from fedgradnorm._cli import federation_commands
from fedgradnorm._flower.serving import serve
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


def several() -> list[fgn.Client]:
    """A client with several tasks, whose labels are rare, beside plain ones."""
    lost = np.arange(40) % 5 > 0
    y = {
        "state": np.where(np.arange(40) % 3 == 0, np.nan, (X[:, 0] > 0).astype(float)),
        "hours": np.where(lost, np.nan, 4 * X[:, 2]),
    }
    tasks = {"state": fgn.binary(), "hours": fgn.regression(1)}
    splits = {"train": (X, y), "validation": (X[:20], {k: v[:20] for k, v in y.items()})}
    return [fgn.Client("pump", tasks=tasks, **splits), *toys.clients()[:2]]


def test_several_tasks_are_one_message_and_the_run_of_one_process(tmp_path, capsys) -> None:
    how = {"personalize": {"steps": 3}, "rounds": 8, "batch_size": 4}
    together = Together(tmp_path, fgn.GradNorm(), clients=several, **how)
    together.run(4)
    together.restart("pump")
    shared = together.run()
    given = {**OPTIONS, **how}
    alone = flat.train(
        toys.network(), several(), weighting=fgn.GradNorm(), executor="loop", **given
    )
    assert torch.equal(shared, toys.parameters(alone.network))
    assert sum(name == "pump" for name, _ in together.exchange.sent) == 8
    rounds = [
        [(row["round"], row["client"]) for row in table.rows if row["split"] == "batch"]
        for table in (together.server.history, alone.table)
    ]
    assert rounds[0] == rounds[1]
    assert 0 < sum(client == "pump/hours" for _, client in rounds[0]) < 8
    federation_commands._show(together.server, tmp_path)
    assert "pump/hours" in capsys.readouterr().out
    result = together.results()["pump"]
    for key, answer in result.predict("pump", X).items():
        assert (answer == alone.predict(f"pump/{key}", X)).all()


def test_the_best_round_of_several_tasks_is_kept_on_the_clients_machine(tmp_path) -> None:
    together = Together(tmp_path, fgn.Equal(), clients=several, keep="best", eval_every=1)
    together.run(3)
    together.restart("pump")
    together.run()
    manifest = together.results()["pump"].manifest
    assert 0 <= manifest["kept"]["round"] <= 6


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda table: {**table, "there/state": 0.5}, "neither 0 nor 1"),
        (lambda table: {k: v for k, v in table.items() if k != "there/hours"}, "there/hours"),
        (lambda table: {**table, "grad_norm/state": -1.0}, "is negative"),
    ],
)
def test_answers_of_several_tasks_are_checked_too(tmp_path, spoil, says: str, caplog) -> None:
    together = Together(tmp_path, fgn.GradNorm(), clients=several)

    def tamper(name, _, content):
        if name == "pump":
            content = spoil(content)
        return content

    together.exchange.tamper = tamper
    together.run(1)
    assert says in caplog.text


def test_heads_in_common_are_refused_with_several_tasks_on_both_sides(tmp_path) -> None:
    says = "heads = 'task' cannot be run over the network .*several tasks; leave it at 'own'"
    with pytest.raises(fgn.ConfigError, match=says):
        Together(tmp_path, clients=several, heads="task")
    (tmp_path / "federation.toml").write_text(
        'clients = ["pump"]\nhost = "here"\nport = 9092\nseveral = { pump = ["state", "hours"] }\n'
    )
    (tmp_path / "run.toml").write_text(
        'rounds = 2\n[data]\nsource = "radcom"\n[network]\nname = "mlp"\nwidths = [4]\n'
        'inputs = 6\n[sharing]\nheads = "task"\n'
    )
    with pytest.raises(fgn.ConfigError, match=says):
        serve(load_config(tmp_path / "run.toml"), tmp_path, tmp_path / "out")


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
