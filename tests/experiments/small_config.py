"""A config that trains in a blink: two clients with files of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TEXT = """
name = "small"
method = "fedgradnorm"
rounds = 6

[data]
source = "files"

[[data.clients]]
name = "class"
task = "classification"
train = "class.npz"
test_share = 0.25

[[data.clients]]
name = "value"
task = "regression"
train = "value.npz"
test_share = 0.25

[network]
name = "mlp"
widths = [6, 5]

[local]
batch_size = 8

[evaluation]
every = 2

[checkpoints]
every = 2

[weighting]
gamma = 0.7

[output]
folder = "{runs}"
"""


def small_config(folder: Path, **arrays: np.ndarray) -> Path:
    """Write the config and its data to ``folder``; the config's path."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    given = {"class": (x[:, 0] > 0).astype(int), "value": 30 * x[:, :1], **arrays}
    for name in ("class", "value"):
        np.savez(folder / f"{name}.npz", x=given.get(f"{name}_x", x), y=given[name])
    path = folder / "small.toml"
    path.write_text(TEXT.replace("{runs}", str(folder / "runs")))
    return path
