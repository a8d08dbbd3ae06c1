"""The official archive, counted. Runs where FEDGRADNORM_DATA names a folder that holds it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedgradnorm._errors import DataError
from fedgradnorm.data import mtfl
from fedgradnorm.data._paths import find_data

pytestmark = [pytest.mark.real_data, pytest.mark.slow]

TRAIN = {
    "gender": [5807, 4193],
    "smile": [5616, 4384],
    "glasses": [1408, 8592],
    "pose": [136, 1113, 7445, 1111, 195],
}
TEST = {
    "gender": [1173, 1822],
    "smile": [1632, 1363],
    "glasses": [241, 2754],
    "pose": [193, 450, 1825, 401, 126],
}


@pytest.fixture(scope="module")
def source():
    try:
        path = find_data(None, ("MTFL.zip", "MTFL"), "mtfl")
    except DataError as error:
        pytest.skip(f"needs the real MTFL archive: {error}")
    return SimpleNamespace(source=path, boxes=mtfl.OWN_BOXES)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def counts(split):
    return {name: np.bincount(split.labels[name]).tolist() for name in mtfl.CLASSES}


def rows_of(clients, data):
    """The training rows of every client, found again by their pictures."""
    where = {}
    for index, image in enumerate(data.train.images):
        where.setdefault(image.tobytes(), []).append(index)
    found = []
    for client in clients:
        pixels = np.rint(client.train[0].numpy() * 255).astype(np.uint8)
        found += [where[image.tobytes()].pop() for image in pixels]
    return sorted(found)


def test_whole_pictures(source, cache):
    data = mtfl.prepare(source.source, crop="whole", cache=cache)
    assert (len(data.train), len(data.test)) == (10_000, 2_995)
    assert counts(data.train) == TRAIN
    assert counts(data.test) == TEST
    assert data.train.landmarks.min() >= 0
    assert data.train.landmarks.max() <= 40
    assert not mtfl.prepare(source.source, crop="whole", cache=cache).fresh
    clients = mtfl.clients(source=source.source, crop="whole", allocation="imbalanced", cache=cache)
    assert [client.size for client in clients] == [3000, 500, 3000, 500, 3000]
    assert rows_of(clients, data) == list(range(10_000))


def test_face_boxes(source, cache, caplog):
    data = mtfl.prepare(source.source, cache=cache)
    assert (len(data.train), len(data.test)) == (9_983, 2_931)
    assert data.info["rows"]["train"]["without a box"] == 17
    assert data.info["rows"]["test"]["without a box"] == 64
    clients = mtfl.clients(source=source.source, allocation="imbalanced", cache=cache)
    assert [client.size for client in clients] == [3000, 500, 3000, 500, 2983]
    assert rows_of(clients, data) == list(range(9_983))
    assert {len(client.test[0]) for client in clients} == {2_931}
    assert "client 'pose' has 2983 training rows, not 3000" in caplog.text


def test_pose_agrees_with_where_the_nose_is(source, cache):
    """A wrong column order or a mirrored picture would break this at once."""
    split = mtfl.prepare(source.source, crop="whole", cache=cache).train
    left_eye, right_eye, nose = (split.landmarks[:, column] for column in range(3))
    off = (nose - (left_eye + right_eye) / 2) / np.abs(right_eye - left_eye).clip(1)
    middles = [np.median(off[split.labels["pose"] == pose]) for pose in range(5)]
    assert middles == sorted(middles)
    assert middles[0] < -0.3 < 0.3 < middles[4]


def test_the_official_archive_alone_is_enough_to_reproduce(source, tmp_path):
    """Table II from MTFL.zip in a fresh folder, in its own process: two rounds of two methods."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "MTFL.zip").symlink_to(source.source)
    words = ["-m", "fedgradnorm", "reproduce", "table2", "--seeds", "1", "--device", "cpu"]
    words += ["rounds=2", "evaluation.every=0", 'compare.methods=["fedrep","fedgradnorm"]']
    places = {"FEDGRADNORM_DATA": str(data), "FEDGRADNORM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path, env={**os.environ, **places}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs" / "table2").glob("*/metrics.csv"))) == 2
