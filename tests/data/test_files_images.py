"""Clients from a table of image paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.small_tables import client_from_files, one_line, write
from fedgradnorm import ConfigError, DataError


@pytest.fixture
def folder(tmp_path):
    inner = tmp_path / "faces" / "in"
    inner.mkdir(parents=True)
    Image.new("RGB", (20, 10), (255, 0, 0)).save(inner / "red.png")
    Image.new("L", (8, 8), 51).save(inner / "dark.jpg")
    deep = np.full((6, 6), 32896, dtype=np.uint16)
    Image.fromarray(deep).save(inner / "deep.png")
    Image.new("L", (8, 8), 0).save(tmp_path / "secret.png")
    (inner / "broken.jpg").write_bytes((inner / "dark.jpg").read_bytes()[:-60])
    return tmp_path / "faces"


def faces(folder, *rows, **options):
    table = "path,y\n" + "".join(f"{path},{i}\n" for i, path in enumerate(rows))
    path = write(folder.parent / "labels.csv", table)
    return client_from_files(
        "faces", task="regression", train=path, images=folder, targets="y", **options
    )


def test_images_are_read_scaled_and_sized(folder):
    rows = ("in/red.png", r"in\dark.jpg", "in/deep.png")
    x = faces(folder, *rows).client.train[0]
    assert x.shape == (3, 1, 40, 40)
    assert torch.allclose(x[:, 0, 20, 20], torch.tensor([76, 51, 128]) / 255)
    x = faces(folder, *rows, size=12, color="rgb").client.train[0]
    assert x.shape == (3, 3, 12, 12)
    assert x[0, :, 5, 5].tolist() == [1, 0, 0]


def test_images_are_standardised_per_channel(folder):
    loaded = faces(folder, "in/red.png", "in/dark.jpg", color="rgb", size=4, standardize="inputs")
    assert loaded.scaling.input_mean.shape == (3, 1, 1)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../secret.png", "leads outside the image folder"),
        (r"..\secret.png", "leads outside the image folder"),
        ("in/../../secret.png", "leads outside the image folder"),
        ("link.png", "leads outside the image folder"),
        ("in/gone.png", "no image 'in/gone.png'"),
        ("in", "no image 'in'"),
        ("in/broken.jpg", "cannot be read"),
        ("x" * 300, "not a usable path|no image"),
        ("", "no image path"),
    ],
)
def test_bad_images_name_the_row_or_are_dropped(folder, path, says):
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    with pytest.raises(DataError, match=rf"labels\.csv, data row 2 .*'path'.*({says})") as caught:
        faces(folder, "in/red.png", path)
    one_line(caught)
    loaded = faces(folder, "in/red.png", path, on_bad="drop")
    assert loaded.client.size == 1
    assert list(loaded.dropped.values()) == [(2,)]


def test_an_absolute_path_is_outside(folder):
    with pytest.raises(DataError, match="outside"):
        faces(folder, str(Path(folder.parent / "secret.png").resolve()))


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 2.5}, {"color": "grey"}])
def test_bad_image_settings(folder, options):
    with pytest.raises(ConfigError):
        faces(folder, "in/red.png", **options)
