"""Several tasks on one client: a row for each, the same batches, and one that is asked for all."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import fedgradnorm as fgn
import flat
import toys
from data.small_tables import client_from_files

X = np.random.default_rng(8).normal(size=(44, toys.FEATURES))
TASKS = {
    "state": fgn.classification(3, class_weights="balanced"),
    "hours": fgn.regression(2),
    "tags": fgn.multilabel(3),
}


def targets(*, gaps: float = 0.3) -> dict[str, np.ndarray]:
    """The targets of all tasks; a share of the rows of each is not labelled."""
    lost = np.random.default_rng(1)
    table = {
        "state": (X[:, 0] > -0.4).astype(float) + (X[:, 1] > 0.4),
        "hours": 7 * X[:, 2:4] - 2,
        "tags": (X[:, 1:4] > 0.2).astype(float),
    }
    for y in table.values():
        y[lost.random(len(y)) < gaps] = np.nan
    table["tags"][::7, 1] = np.nan
    return table


def pump(gaps: float = 0.3, **options: Any) -> fgn.Client:
    y = targets(gaps=gaps)
    splits = {
        name: (X[rows], {key: one[rows] for key, one in y.items()})
        for name, rows in (("train", slice(30)), ("validation", slice(30, 36)))
    }
    test = X[36:], {key: one[36:] for key, one in targets(gaps=0).items()}
    return fgn.Client("pump", tasks=TASKS, test=test, **splits, **options)


def train(*, given: list[fgn.Client] | None = None, network: Any = None, **options: Any) -> fgn.Run:
    how = {"rounds": 6, "batch_size": 4, "lr": 0.01, "device": "cpu", **options}
    clients = [pump(), *toys.clients()[:2]] if given is None else given
    return flat.train(network or toys.network(), clients, **how)


ROWS = ["pump/state", "pump/hours", "pump/tags"]


@pytest.fixture(scope="module")
def looped() -> fgn.Run:
    return train(executor="loop", participation=0.7)


@pytest.mark.parametrize("executor", ["joint", "vmap"])
def test_every_engine_gives_the_loops_run(executor: str, looped: fgn.Run) -> None:
    run = train(executor=executor, participation=0.7)
    numbers = run.history.select_dtypes("number").columns
    left, right = (one.history[numbers].to_numpy(float) for one in (run, looped))
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-9)
    pair = toys.parameters(run.network), toys.parameters(looped.network)
    torch.testing.assert_close(*pair, rtol=0, atol=1e-11)


class Counted(torch.nn.Module):
    """A network that writes down how many rows it is given, and whether to learn from them."""

    seen: ClassVar[list[tuple[bool, int]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(toys.FEATURES, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((self.training and torch.is_grad_enabled(), len(x)))
        return torch.relu(self.layer(x))


def test_the_network_is_passed_once_for_all_tasks() -> None:
    client = fgn.Client("pump", tasks=TASKS, train=(X, targets(gaps=0)))
    Counted.seen.clear()
    run = train(given=[client], network=toys.seeded(Counted), executor="joint")
    learned = [rows for learns, rows in Counted.seen if learns]
    assert learned[-6:] == [4] * 6  # one pass a round, of one batch
    Counted.seen.clear()
    looped = train(given=[client], network=toys.seeded(Counted), executor="loop")
    assert [rows for learns, rows in Counted.seen if learns][-18:] == [4] * 18
    pair = toys.parameters(run.network), toys.parameters(looped.network)
    torch.testing.assert_close(*pair, rtol=0, atol=1e-11)


@pytest.mark.parametrize("layer", [torch.nn.ReLU, torch.nn.Tanh])
def test_one_pass_gives_every_tasks_gradient(layer: type) -> None:
    net = toys.seeded(lambda: torch.nn.Sequential(torch.nn.Linear(toys.FEATURES, 5), layer()))
    how = {"network": net, "weighting": fgn.GradNorm(), "head_steps": 2, "participation": 0.7}
    fast, slow = (train(executor=executor, **how) for executor in ("joint", "loop"))
    pair = toys.parameters(fast.network), toys.parameters(slow.network)
    torch.testing.assert_close(*pair, rtol=0, atol=1e-10)


def test_there_is_a_row_a_weight_and_a_head_for_each_task(looped: fgn.Run) -> None:
    assert list(looped.clients)[:3] == ROWS
    assert set(ROWS) <= set(looped.weights)
    assert set(ROWS) <= set(looped.summary().index)
    assert looped.heads["pump/hours"].weight.shape == (2, 5)


def test_tasks_of_one_client_take_part_together_but_for_missing_labels() -> None:
    run = train(given=[pump(gaps=0), *toys.clients()], participation=0.5, rounds=12)
    table = run.history[run.history.split == "batch"]
    for _, there in table.groupby("round"):
        mine = [name for name in there.client if name.startswith("pump/")]
        assert mine in ([], ROWS)
    assert len(table[table.client == "pump/state"]) < 12


def test_a_task_without_a_label_in_a_batch_sits_the_round_out(caplog) -> None:
    y = targets(gaps=0)
    y["hours"][4:] = np.nan
    client = fgn.Client("pump", tasks=TASKS, train=(X, y))
    run = train(given=[client], rounds=30)
    rounds = run.history[run.history.split == "batch"].groupby("client").size()
    assert rounds["pump/state"] == 30
    assert 0 < rounds["pump/hours"] < 20
    assert "pump/hours: 4 of 44 training examples are labeled" in caplog.text
    both = [train(given=[client], rounds=8, executor=e, head_steps=2) for e in ("loop", "joint")]
    torch.testing.assert_close(*(toys.parameters(one.network) for one in both), rtol=0, atol=1e-11)


def test_tasks_read_the_same_batches_as_a_client_of_that_name_would() -> None:
    """With one task of several it is the training of a client with that task alone."""
    y = targets(gaps=0)["hours"]
    alone = fgn.Client("pump", fgn.regression(2), (X, y), head=torch.nn.Linear(5, 2).double())
    several = fgn.Client(
        "pump", tasks={"hours": alone.task}, train=(X, {"hours": y}), head={"hours": alone.head}
    )
    for network in (toys.network(), toys.noisy_network(torch.float64)):
        runs = [train(given=[one], network=network) for one in (alone, several)]
        assert toys.same(*(toys.parameters(run.network) for run in runs))


def test_one_client_is_asked_for_all_its_answers(looped: fgn.Run, tmp_path) -> None:
    loaded = fgn.load(looped.save(tmp_path / "run"))
    for run in (looped, loaded):
        answers = run.predict("pump", X[:5])
        assert list(answers) == list(TASKS)
        for key, answer in answers.items():
            assert (answer == looped.predict(f"pump/{key}", X[:5])).all()
    with pytest.raises(fgn.ConfigError, match=r"unknown client 'pumps'.*'pump'"):
        loaded.predict("pumps", X[:5])


def test_a_run_is_resumed_bit_for_bit(tmp_path) -> None:
    toys.interrupted(train, at=3, folder=tmp_path / "run")
    resumed = train(folder=tmp_path / "run", resume=True)
    assert toys.same(toys.parameters(resumed.network), toys.parameters(train().network))


def test_tuning_draws_labelled_rows_and_a_later_client_may_have_several_tasks() -> None:
    tuned = train(personalize={"steps": 5, "what": "network"}, keep="best", final_head_steps=2)
    assert set(ROWS) <= set(tuned.manifest["personal"])
    later = train(given=toys.clients()).personalize(pump(), steps=3)
    assert set(ROWS) <= set(later.clients)
    assert set(later.predict("pump", X[:3])) == set(TASKS)


def test_tasks_alone_and_their_benefit() -> None:
    found = flat.benefit(toys.network(), [pump(gaps=0)], rounds=2, device="cpu")
    assert list(found.table.index) == ROWS or list(found.table["client"]) == ROWS


def test_clients_with_the_same_tasks_may_share_their_heads() -> None:
    y = targets(gaps=0)
    both = [fgn.Client(name, tasks=TASKS, train=(X, y)) for name in ("north", "south")]
    run = train(given=both, heads="task")
    for key in TASKS:
        left, right = (toys.parameters(run.heads[f"{name}/{key}"]) for name in ("north", "south"))
        assert toys.same(left, right)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tasks": {}}, "tasks must be a table of tasks by name"),
        ({"tasks": {"a": 3}}, r"tasks\['a'\] must be classification"),
        ({"task": fgn.binary()}, "task and tasks are both given"),
        ({"train": (X, X[:, 0])}, "with a table of targets by task"),
        ({"train": (X, {"state": X[:, 0]})}, "no targets for task 'hours'"),
        ({"train": (X, {**targets(), "more": X})}, "targets, but no task, for 'more'"),
        ({"train": (X[:9], targets())}, "task 'state': x has 9 rows but y has 44"),
        ({"head": torch.nn.Linear(5, 2)}, "head must be a table by task"),
        ({"labels": {"sate": ("a", "b")}}, "labels must be a table by task"),
    ],
)
def test_what_does_not_fit_is_named(options: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"tasks": TASKS, "train": (X, targets()), **options}
    with pytest.raises(fgn.DataError, match=f"client 'pump'.*{says}"):
        fgn.Client("pump", **given)


def test_a_client_is_not_another_clients_task() -> None:
    other = fgn.Client("pump", fgn.regression(1), (X, X[:, 0]))
    with pytest.raises(fgn.DataError, match="two clients are named 'pump'"):
        train(given=[pump(), toys.client("side"), other])


TABLES = {
    "state": {"task": "classification", "targets": "state", "class_weights": "balanced"},
    "hours": {"task": "regression", "targets": "hours", "metrics": ["rmse"]},
}


def test_a_table_may_hold_the_targets_of_several_tasks(tmp_path) -> None:
    frame = pd.DataFrame(X[:, :3], columns=["u", "v", "w"])
    frame["state"] = np.where(X[:, 0] > 0, "on", "off")
    frame["hours"] = 100 * X[:, 1] + 500
    frame.loc[::4, "state"], frame.loc[1::4, "hours"] = None, None
    path = tmp_path / "a.csv"
    frame.to_csv(path, index=False, na_rep="NULL")
    settings = {"train": path, "test_share": 0.25, "standardize": True}
    client = client_from_files("north", tasks=TABLES, **settings).client
    state, hours = client.rows
    assert state.labels == ("off", "on")
    assert state.columns == ("u", "v", "w")
    assert state.train[0] is hours.train[0]
    run = fgn.train(toys.seeded(lambda: torch.nn.Linear(3, 4)), [client], epochs=30, lr=0.05)
    raw = frame[["w", "u", "v"]]
    assert set(run.predict("north/state", raw, kind="label")) <= {"on", "off"}
    left = run.predict("north", raw)["hours"][:, 0]
    known = frame.hours.notna()
    assert np.corrcoef(left[known], frame.hours[known])[0, 1] > 0.9
    assert abs(left.mean() - 500) < 60
    # A row that is spoilt for one task is left out of all, and all tasks still hold the same rows.
    frame["hours"] = frame.hours.astype(object)
    frame.loc[2, "hours"] = "broken"
    frame.to_csv(path, index=False, na_rep="")
    loaded = client_from_files("north", tasks=TABLES, train=path, on_bad="drop")
    assert loaded.dropped == {str(path): (3,)}
    assert {len(row.train[0]) for row in loaded.client.rows} == {43}


CONFIG = """
name = "plant"
method = "fedgradnorm"
rounds = 4
[data]
source = "files"
[[data.clients]]
name = "north"
train = "a.csv"
test_share = 0.25
standardize = true
[data.clients.tasks.state]
task = "binary"
targets = "state"
positive = "on"
[data.clients.tasks.hours]
task = "regression"
targets = "hours"
metrics = ["rmse"]
[network]
name = "mlp"
widths = [5]
[local]
batch_size = 8

[server]
participation = ["north"]

[compute]
device = "cpu"
"""


def test_a_config_names_several_tasks_and_its_run_says_how_they_are_judged(tmp_path) -> None:
    from fedgradnorm.experiments import load_config, run

    frame = pd.DataFrame(X[:, :3], columns=["u", "v", "w"])
    frame["state"] = np.where(X[:, 0] > 1, "on", "off")
    frame["hours"] = 100 * X[:, 1] + 500
    frame.to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "c.toml").write_text(CONFIG)
    config = load_config(tmp_path / "c.toml")
    again = tmp_path / "again.toml"
    again.write_text(config.text())
    assert load_config(again).table() == config.table()
    done = run(config, folder=tmp_path / "run")
    loaded = fgn.load(tmp_path / "run")
    assert (loaded.predict("north", frame)["hours"] == done.predict("north", frame)["hours"]).all()
    info = loaded.manifest["clients"]["north/hours"]
    assert info["metric"] == "rmse"
    y = loaded.predict("north/hours", frame)  # in the file's own units
    assert 300 < y.mean() < 700
    held = int(info["splits"]["test"])
    assert held == 11
    assert 30 < info["baseline"]["rmse"] < 200
    assert loaded.summary().loc["north/hours", "baseline"] == info["baseline"]["rmse"]
    assert loaded.summary().loc["north/state", "baseline"] > 0.6


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tasks": TABLES, "task": "binary"}, "task and tasks are both given"),
        ({"tasks": TABLES, "targets": "state"}, "targets and tasks are both given"),
        ({"tasks": {"a": "regression"}}, "task 'a': give a table such as"),
        ({"tasks": {"a": {"task": "regresion"}}}, "did you mean 'regression'"),
        ({"tasks": {"a": {"task": "binary", "target": "y"}}}, "did you mean 'targets'"),
        ({}, "unknown task"),
    ],
)
def test_wrong_tables_of_tasks_are_named(tmp_path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(fgn.ConfigError, match=says):
        client_from_files("north", train=tmp_path / "a.csv", **options)
