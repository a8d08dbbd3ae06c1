import logging
import time

import numpy as np
import pytest
import torch

from fedgradnorm import ConfigError
from fedgradnorm.data import faces
from fedgradnorm.data.faces import CLASSES, SHARES


@pytest.fixture(scope="module")
def drawn():
    return faces.generate(samples=3000, seed=4)


def test_shapes_and_ranges(drawn):
    assert drawn.images.shape == (3000, 1, 40, 40)
    assert drawn.images.dtype == np.uint8
    assert drawn.landmarks.shape == (3000, 10)
    assert drawn.landmarks.dtype == np.float32
    assert drawn.landmarks.min() > 2
    assert drawn.landmarks.max() < 38
    for name, classes in CLASSES.items():
        shares = np.bincount(drawn.labels[name], minlength=len(classes)) / 3000
        np.testing.assert_allclose(shares, SHARES[name], atol=0.04)


def test_the_same_seed_draws_the_same_faces(drawn):
    again, longer, other = (faces.generate(n, s) for n, s in ((700, 4), (800, 4), (700, 5)))
    for task in faces.TASKS:
        np.testing.assert_array_equal(again.target(task), drawn.target(task)[:700])
        np.testing.assert_array_equal(again.target(task), longer.target(task)[:700])
    np.testing.assert_array_equal(again.images, longer.images[:700])
    assert (again.images != other.images).mean() > 0.5


def test_no_two_faces_are_alike(drawn):
    assert len({image.tobytes() for image in drawn.images}) == 3000


def test_landmarks_are_where_the_features_are(drawn):
    """Eyes and mouth corners are darker than the cheek between them, on average over faces."""
    x, y = np.split(drawn.landmarks, 2, axis=1)
    frontal = (drawn.labels["pose"] == 2) & (drawn.labels["glasses"] == 1)

    def level(at_x, at_y):
        pixels = drawn.images[np.arange(3000), 0, at_y.astype(int), at_x.astype(int)]
        return pixels[frontal].astype(float).mean()

    cheek = np.mean([level(x[:, e], (y[:, e] + y[:, 2]) / 2 + 1) for e in (0, 1)])
    for point in (0, 1):
        assert level(x[:, point], y[:, point]) < 0.75 * cheek
    assert level(x[:, 2], y[:, 2] + 0.5) < 0.9 * cheek


def test_the_nose_points_where_the_head_turns(drawn):
    x = drawn.landmarks[:, :5]
    off = x[:, 2] - (x[:, 0] + x[:, 1]) / 2
    middles = [off[drawn.labels["pose"] == pose].mean() for pose in range(5)]
    assert middles == sorted(middles)


def test_labels_can_be_learned_but_not_read_off_the_brightness(drawn):
    """The mean grey level says nothing; nearest class means on raw pixels already beat chance."""
    pixels = drawn.images.reshape(3000, -1) / 255
    pixels = pixels - pixels.mean(axis=1, keepdims=True)
    pixels /= pixels.std(axis=1, keepdims=True)
    for name in ("shape", "glasses"):
        labels = drawn.labels[name]
        brightness = [drawn.images[labels == c].mean() for c in (0, 1)]
        assert abs(brightness[0] - brightness[1]) < 10
        means = [pixels[:2000][labels[:2000] == c].mean(axis=0) for c in (0, 1)]
        score = pixels[2000:] @ (means[1] - means[0])
        cut = np.mean([(m @ (means[1] - means[0])) for m in means])
        right = ((score > cut) == labels[2000:]).astype(float)
        assert np.mean([right[labels[2000:] == c].mean() for c in (0, 1)]) > 0.55


def test_clients(caplog):
    with caplog.at_level(logging.INFO):
        clients = faces.clients(
            samples=1000, test_samples=60, allocation="imbalanced", validation_share=0.2
        )
    assert "synthetic" in caplog.text
    assert [client.name for client in clients] == ["landmark", "shape", "smile", "glasses", "pose"]
    assert [client.size for client in clients] == [240, 40, 240, 40, 240]
    assert [len(client.validation[0]) for client in clients] == [60, 10, 60, 10, 60]
    assert {len(client.test[0]) for client in clients} == {60}
    seen = torch.cat([torch.cat([c.train[0], c.validation[0]]) for c in clients])
    assert len({row.numpy().tobytes() for row in seen}) == 1000
    assert not {r.numpy().tobytes() for r in seen} & {
        r.numpy().tobytes() for r in clients[0].test[0]
    }


def test_progress_and_settings():
    steps = []
    faces.clients(samples=600, test_samples=10, progress=lambda *step: steps.append(step))
    assert steps == [(500, 610), (600, 610), (610, 610)]
    for wrong, least in (({"samples": 0}, 1), ({"seed": -1}, 0)):
        with pytest.raises(
            ConfigError, match=f"{next(iter(wrong))} must be a whole number from {least}"
        ):
            faces.generate(**wrong)


@pytest.mark.slow
def test_ten_thousand_in_under_thirty_seconds():
    start = time.process_time()
    assert len(faces.generate()) == 10_000
    assert time.process_time() - start < 30
