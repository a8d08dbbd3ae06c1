"""Face tasks cut into many clients: disjoint rows, names, and one test set for all of a task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data import faces, mtfl
from fedgradnorm.data._sources import load_clients
from mtfl_archive import mtfl_files, write_zip

TASKS = ["landmark", "gender", "smile", "glasses", "pose"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_zip(tmp_path_factory.mktemp("mtfl") / "MTFL.zip", mtfl_files(train=60, test=10))


def make(source, **options):
    options = {"crop": "whole", "cache": source.parent / "c", **options}
    return mtfl.clients(source=source, **options)


def pictures(clients):
    return [row.numpy().tobytes() for client in clients for row in client.train[0]]


def test_names_tasks_sizes_and_rows(source):
    clients = make(source, clients_per_task=2, rows=6)
    assert [c.name for c in clients] == [f"{task}-{i}" for task in TASKS for i in range(2)]
    assert [c.task_name for c in clients] == [task for task in TASKS for _ in range(2)]
    assert {c.size for c in clients} == {6}
    assert len(set(pictures(clients))) == 60  # no picture twice
    assert pictures(clients) == pictures(make(source, clients_per_task=2, rows=6))
    assert pictures(clients) != pictures(make(source, clients_per_task=2, rows=6, seed=1))


def test_a_task_s_clients_hold_the_same_test_tensors(source):
    clients = make(source, clients_per_task=3, rows=4, tasks=["landmark", "gender"])
    by_task = {task: [c for c in clients if c.task_name == task] for task in ("landmark", "gender")}
    for members in by_task.values():
        assert all(c.test[0] is members[0].test[0] for c in members)
        assert all(c.test[1] is members[0].test[1] for c in members)
    data = mtfl.prepare(source, crop="whole", cache=source.parent / "c")
    assert by_task["gender"][0].test[1].tolist() == data.test.labels["gender"].tolist()
    assert np.array_equal(by_task["landmark"][2].test[1].numpy(), data.test.landmarks)
    assert clients[0].test[0] is clients[-1].test[0]  # the pictures are those of every task


def test_targets_stay_with_their_pictures(source):
    data = mtfl.prepare(source, crop="whole", cache=source.parent / "c")
    pixels = [(image / np.float32(255)).astype(np.float32).tobytes() for image in data.train.images]
    labels = dict(zip(pixels, data.train.labels["smile"].tolist(), strict=True))
    for client in make(source, clients_per_task=4, rows=5, tasks=["smile"]):
        x, y = client.train
        assert [labels[row.numpy().tobytes()] for row in x] == y.tolist()


def test_without_rows_the_allocation_is_shared_out(source):
    whole = make(source, allocation=[12, 12, 12, 12, 12])
    parts = make(source, allocation=[12, 12, 12, 12, 12], clients_per_task=2)
    assert [c.size for c in parts] == [6] * 10
    for place, client in enumerate(whole):
        together = pictures(parts[2 * place : 2 * place + 2])
        assert sorted(together) == sorted(pictures([client]))


def test_one_client_a_task_keeps_its_name(source):
    clients = make(source, rows=7)
    assert [(c.name, c.task_name, c.size) for c in clients] == [(t, t, 7) for t in TASKS]


def test_validation_rows_are_each_client_s_own(source):
    clients = make(source, clients_per_task=2, rows=6, tasks=["gender"], validation_share=0.5)
    assert [(c.size, len(c.validation[0])) for c in clients] == [(3, 3)] * 2
    assert clients[0].validation[0] is not clients[1].validation[0]


def test_drawn_faces_and_configs():
    options = {"samples": 75, "test_samples": 5, "clients_per_task": 3, "rows": 5}
    clients = load_clients("faces", options, seed=0)
    assert [c.name for c in clients][:4] == ["landmark-0", "landmark-1", "landmark-2", "shape-0"]
    assert clients[3].test[1] is clients[4].test[1]
    assert len(set(pictures(clients))) == 75
    halves = faces.clients(samples=60, test_samples=5, clients_per_task=2)
    assert [c.size for c in halves] == [6] * 10


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"clients_per_task": 0}, ConfigError, "clients_per_task must be a whole number >= 1"),
        ({"clients_per_task": True}, ConfigError, "clients_per_task must be a whole number"),
        ({"rows": 0}, ConfigError, "rows must be a whole number >= 1, not 0"),
        ({"rows": "x"}, ConfigError, "rows must be a whole number"),
        ({"rows": 4, "allocation": "imbalanced"}, ConfigError, "leave one of them out"),
        (
            {"rows": 7, "clients_per_task": 2},
            DataError,
            "70 training rows are asked for, 7 for each of 10 clients, but there are 60, 6 for",
        ),
        (
            {"allocation": [4] * 5, "clients_per_task": 5},
            DataError,
            "task 'landmark': 4 rows are too few for 5 clients",
        ),
        ({"rows": 3, "tasks": ["pose"]}, DataError, "client 'pose': 5 classes but only 3"),
        ({"rows": 4, "tasks": ["gender", "gender"]}, ConfigError, "must be distinct"),
        ({"rows": 4, "tasks": ["gendre"]}, ConfigError, "did you mean 'gender'"),
    ],
)
def test_settings_are_checked(source, options, error, said):
    with pytest.raises(error, match=said):
        make(source, **options)


def test_a_client_keeps_a_tensor_that_it_is_given_and_nothing_else_of_it():
    from fedgradnorm import Client, regression

    x, y = torch.ones(4, 2), torch.ones(4, 1)
    plain = Client("a", regression(1), (x, y), test=(x, y))
    assert plain.test[0] is x
    assert plain.test[1] is y
    learned = Client("b", regression(1), (x.clone().requires_grad_(), y))
    assert not learned.train[0].requires_grad
