import logging

import numpy as np
import pytest
import torch

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data import mtfl
from fedgradnorm.data._face_clients import allocate, nme, sizes_of
from mtfl_archive import mtfl_files, write_zip

NAMES = ["landmark", "gender", "smile", "glasses", "pose"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_zip(tmp_path_factory.mktemp("mtfl") / "MTFL.zip", mtfl_files(train=40, test=10))


def make(source, **options):
    options = {"crop": "whole", "allocation": [8] * 5, "cache": source.parent / "c", **options}
    return mtfl.clients(source=source, **options)


def test_five_clients_with_their_tasks(source):
    clients = make(source)
    assert [client.name for client in clients] == NAMES
    assert [client.task.outputs for client in clients] == [10, 2, 2, 2, 5]
    assert [client.size for client in clients] == [8] * 5
    assert set(clients[0].task.metrics) == {"mae", "r2", "nme"}
    for client in clients:
        x, _ = client.train
        assert x.dtype == torch.float32
        assert 0 <= x.min() <= x.max() <= 1
        assert len(client.test[0]) == 10
        assert client.validation is None
    assert clients[0].test[0].data_ptr() == clients[4].test[0].data_ptr()


def test_rows_are_disjoint_seeded_and_independent_of_the_others(source):
    def pictures(clients):
        return [{row.numpy().tobytes() for row in client.train[0]} for client in clients]

    first = pictures(make(source))
    assert len(set.union(*first)) == 40
    assert first == pictures(make(source))
    assert first != pictures(make(source, seed=1))
    sizes = dict.fromkeys(NAMES, 8)
    assert pictures(make(source, allocation=sizes, tasks=["pose", "smile"])) == [first[4], first[2]]


def test_targets_stay_with_their_pictures(source):
    data = mtfl.prepare(source, crop="whole", cache=source.parent / "c")
    labels = {
        (image / np.float32(255)).astype(np.float32).tobytes(): pose
        for image, pose in zip(data.train.images, data.train.labels["pose"], strict=True)
    }
    x, y = make(source)[4].train
    assert [labels[row.numpy().tobytes()] for row in x] == y.tolist()


def test_validation_share_and_loss_scale(source):
    clients = make(source, validation_share=0.25, loss_scale={"landmark": 0.01})
    assert [(c.size, len(c.validation[0])) for c in clients] == [(6, 2)] * 5
    assert clients[0].task.loss_scale == 0.01
    assert clients[1].task.loss_scale == 1


def test_too_few_rows_shrink_the_last_client(source, caplog):
    with caplog.at_level(logging.WARNING):
        clients = make(source, allocation=[10, 5, 10, 5, 20])
    assert [client.size for client in clients] == [10, 5, 10, 5, 10]
    assert "client 'pose' has 10 training rows, not 20" in caplog.text


def test_a_client_without_rows(source):
    with pytest.raises(DataError, match=r"client 'pose': no rows left.*40 rows"):
        make(source, allocation=[10, 10, 10, 10, 10])
    with pytest.raises(DataError, match=r"client 'gender': no rows left"):
        make(source, allocation="balanced")
    with pytest.raises(DataError, match=r"client 'gender': no rows \(size 0\)"):
        make(source, allocation={"landmark": 3, "gender": 0})
    with pytest.raises(DataError, match="validation_share"):
        make(source, allocation=[8, 8, 8, 8, 1], validation_share=0.1)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"allocation": "balansed"}, "did you mean 'balanced'"),
        ({"allocation": [1, 2]}, "2 sizes for 5 clients"),
        ({"allocation": {"smil": 3}}, "did you mean 'smile'"),
        ({"allocation": {"smile": 30}}, "each with a size in allocation"),
        ({"allocation": [8, 8, 8, 8, 2.5]}, "whole number"),
        ({"tasks": ["smile", "smile"], "allocation": {"smile": 5}}, "must be distinct"),
        ({"tasks": ["age"], "allocation": [3]}, "unknown task 'age'"),
        ({"tasks": []}, "5 sizes for 0 clients"),
        ({"loss_scale": {"poses": 1.0}}, "did you mean 'pose'"),
        ({"validation_share": 1.0}, "validation_share"),
    ],
)
def test_settings_are_checked(source, options, what):
    with pytest.raises(ConfigError, match=what):
        make(source, **options)


@pytest.mark.parametrize("preset", ["balanced", "imbalanced"])
@pytest.mark.parametrize("rows", [7, 100, 9_983, 10_000])
def test_scaled_presets_cover_every_row_once(preset, rows):
    sizes = sizes_of(preset, NAMES, rows=max(rows, 20))
    parts = allocate(max(rows, 20), sizes, seed=3)
    assert np.sort(np.concatenate(list(parts.values()))).tolist() == list(range(max(rows, 20)))


def test_nme_by_hand():
    target = torch.tensor([[0.0, 10, 5, 2, 8, 0, 0, 5, 9, 9], [0.0, 0, 5, 2, 8, 0, 20, 5, 9, 9]])
    moved = target.clone()
    moved[:, 0] += 3
    moved[:, 5] += 4  # one of five points is off by five
    assert nme(moved, target).item() == pytest.approx((1 / 10 + 1 / 20) / 2)
    assert nme(moved / 40, target / 40).item() == pytest.approx((1 / 10 + 1 / 20) / 2)
    assert nme(target, target).item() == 0
