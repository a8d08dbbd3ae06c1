"""The figure of losses and weights."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._report.figures.curves import figure
from fedgradnorm._report.record import Record


def record(label="fedrep", seed=0, rounds=6, clients=("a", "b"), shift=0.0):
    rows = []
    for number in range(rounds + 1):
        for name in clients:
            here = {"round": number, "epoch": number / 2, "client": name}
            if number:
                rows.append({**here, "split": "batch", "weight": 1.0 + shift, "loss": 1.0})
            if number % 2 == 0:
                loss = 100.0 / (number + 1) + shift + seed
                rows.append({**here, "split": "train", "weight": 1.0, "loss": loss})
    return Record(label, seed, rows)


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_formats(tmp_path, ending, magic):
    path = figure([record()], tmp_path / "deep" / f"figure.{ending}")
    assert path.read_bytes().startswith(magic)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_every_method_has_its_colour_and_nothing_is_blank(tmp_path):
    runs = [
        record("fedgradnorm-direct"),
        record("fedrep", shift=0.5),
        record("fedgradnorm", shift=1.0),
    ]
    pixels = np.asarray(Image.open(figure(runs, tmp_path / "f.png")).convert("RGB"))
    for colour in ((0, 114, 178), (213, 94, 0), (0, 158, 115)):
        assert (np.abs(pixels.astype(int) - colour).sum(axis=2) < 12).sum() > 100


def test_seeds_of_different_length_methods_with_other_clients_and_many_of_them(tmp_path):
    runs = [record(seed=0), record(seed=1, rounds=9), record("other", clients=("b", "c"))]
    runs += [record(f"more {i}") for i in range(9)]
    assert figure(runs, tmp_path / "f.png").stat().st_size > 0


def test_nonpositive_losses_and_one_point(tmp_path):
    made = figure([record(shift=-200.0), record("short", rounds=0)], tmp_path / "f.png")
    assert made.stat().st_size > 0


def test_bad_requests(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in one of \.png"):
        figure([record()], tmp_path / "f.gif")
    with pytest.raises(DataError, match="nothing to draw"):
        figure([Record("empty", 0, [])], tmp_path / "f.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        figure([record()], tmp_path / "file" / "f.png")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


DRAWS = """
import sys
from pathlib import Path
from fedgradnorm._report.figures.curves import figure
from fedgradnorm._report.record import Record

row = {"round": 0, "epoch": 0.0, "client": "a", "split": "train", "weight": 1.0, "loss": 1.0}
later = {**row, "round": 1, "epoch": 1.0}
figure([Record("fedrep", 0, [row, {**later, "split": "batch"}, later])], Path(sys.argv[1]))
assert "matplotlib.pyplot" not in sys.modules
"""


def test_no_global_plotting_state(tmp_path):
    """In a process of its own: a library that another test uses may load pyplot."""
    subprocess.run([sys.executable, "-c", DRAWS, tmp_path / "f.png"], check=True)
    assert (tmp_path / "f.png").exists()
