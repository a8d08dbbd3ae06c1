"""Files whose rows are no plain table: named inputs, ids, sequences, masks, first parts."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
from data.small_tables import client_from_files
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments import run as execute

ROWS, SEQUENCES, WORDS = 60, 20, 9
GENERATOR = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "load": GENERATOR.normal(size=ROWS),
        "heat": GENERATOR.normal(1e6, 5, ROWS),
        "kind": GENERATOR.choice(["axial", "radial"], ROWS),
        "first": GENERATOR.integers(0, WORDS, ROWS),
        "last": GENERATOR.integers(0, WORDS, ROWS),
        "visit": np.repeat([f"v{i}" for i in range(SEQUENCES)], 3),
        "when": GENERATOR.permutation(ROWS),
    }
)
FRAME["hours"] = 500 + 40 * FRAME["load"]
FRAME["state"] = np.where(FRAME.index // 3 % 2, "worn", "fine")
NAMED: dict[str, Any] = {
    "task": "regression",
    "train": FRAME,
    "inputs": {"sensors": ["load", "heat", "kind"], "words": ["first", "last"]},
    "ids": "words",
    "categories": ["kind"],
    "targets": "hours",
    "standardize": True,
    "test_share": 0.2,
}
LONG: dict[str, Any] = {
    "task": "classification",
    "train": FRAME,
    "inputs": ["load", "heat"],
    "targets": "state",
}


class Named(nn.Module):
    """Sensors along with words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS, 3), nn.Linear(10, 5)

    def forward(self, sensors: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([sensors, self.words(words).flatten(1)], dim=1))


class Steps(nn.Module):
    """The mean of a sequence's steps."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        real = mask[..., None].to(x.dtype)
        return self.layer((x * real).sum(dim=1) / real.sum(dim=1))


def test_named_inputs_of_a_table_are_encoded_scaled_saved_and_asked_for(tmp_path: Path) -> None:
    client = client_from_files("a", **NAMED).client
    x = client.train[0]
    assert x.form() == {"sensors": [4], "words": [2]}
    assert x.fields["words"].dtype == torch.int64
    assert x.fields["sensors"].abs().max() < 10
    run = fgn.train(Named(), [client], rounds=3)
    loaded = fgn.load(run.save(tmp_path / "run"), network=Named())
    answer = loaded.predict("a", FRAME[FRAME.columns[::-1]])
    assert np.array_equal(answer, run.predict("a", FRAME))
    assert 300 < answer.mean() < 700
    with pytest.raises(fgn.DataError, match=r"column 'first' is 1\.5, not an id"):
        run.predict("a", FRAME.assign(first=1.5))


def test_several_tasks_share_named_inputs() -> None:
    tasks = {
        "state": {"task": "binary", "targets": "state"},
        "mean": {"task": "regression", "targets": "level"},
    }
    table = FRAME.assign(level=7000 + FRAME.groupby("visit")["load"].transform("mean"))
    common = {"train": table, "tasks": tasks, "standardize": True}
    client = client_from_files("a", **common, inputs={"x": ["load"], "mask": ["heat"]}).client
    assert set(client.rows[1].train[0].form()) == {"x", "mask"}
    assert client.rows[0].train[0] is client.rows[1].train[0]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    np.savez(
        tmp_path / "rows.npz",
        tokens=GENERATOR.integers(0, WORDS, (SEQUENCES, 7)),
        length=np.arange(SEQUENCES) % 7 + 1,
        values=GENERATOR.normal(size=(SEQUENCES, 7, 2)),
        still=GENERATOR.normal(size=(SEQUENCES, 3)),
        y=np.arange(SEQUENCES) % 2,
    )
    return tmp_path / "rows.npz"


def test_an_archive_holds_ids_sequences_and_named_inputs(archive: Path) -> None:
    common: dict[str, Any] = {"task": "classification", "train": archive}
    ids = client_from_files("a", **common, x_key="tokens", ids="tokens").client
    assert ids.train[0].dtype == torch.int64
    spell = nn.Sequential(nn.Embedding(WORDS, 2), nn.Flatten())
    assert fgn.train(spell, [ids], rounds=1).finished
    steps = client_from_files("a", **common, x_key="values", lengths="length").client
    assert [len(row) for row in steps.train[0].rows][:3] == [1, 2, 3]
    assert fgn.train(Steps(), [steps], rounds=1).finished
    named = {"words": "tokens", "still": "still"}
    both = client_from_files(
        "a", **common, inputs=named, ids="words", lengths={"words": "length"}
    ).client
    assert both.train[0].form() == {"words": {"step": []}, "still": [3]}


def test_masks_and_tags_come_from_an_archive(tmp_path: Path) -> None:
    x = GENERATOR.normal(size=(20, 1, 6, 5))
    names = np.where(x[:, 0] > 0, "on", "off")
    names[0, 0, 0] = ""  # which nobody labelled
    two = np.stack([x[:, 0], 2 * x[:, 0]], axis=1)
    np.savez(tmp_path / "m.npz", x=x, names=names, once=x[:, 0], twice=two)
    path: dict[str, Any] = {"train": tmp_path / "m.npz", "shape": [6, 5]}
    mask = client_from_files("m", task="classification", y_key="names", **path).client
    assert mask.labels == ("off", "on")
    assert mask.train[1].isnan().sum() == 1
    assert torch.equal(mask.train[1][1:] == 1, torch.as_tensor(x[1:, 0] > 0))
    above = client_from_files("b", task="binary", y_key="once", above=0.0, **path).client
    assert torch.equal(above.train[1].reshape(20, 6, 5) == 1, torch.as_tensor(x[:, 0] > 0))
    image = client_from_files("i", task="regression", y_key="twice", standardize=True, **path)
    assert image.client.task.outputs == 2
    run = fgn.train(nn.Conv2d(1, 3, 1), [mask, image.client], rounds=2)
    assert run.predict("m", x, kind="label").shape == (20, 6, 5)
    assert run.predict("i", x).shape == (20, 2, 6, 5)


CONFIG = """\
rounds = 2

[data]
source = "files"
standardize = true

[[data.clients]]
name = "plain"
task = "regression"
train = "rows.csv"
inputs = ["load", "heat", "first", "last"]
targets = "hours"

[[data.clients]]
name = "wide"
task = "classification"
train = "rows.npz"
x_key = "still"
stem = { widths = [6, 4], activation = "tanh" }

[network]
name = "mlp"
widths = [5]

"""


def test_a_config_gives_a_client_its_first_part(tmp_path: Path, archive: Path) -> None:
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "run.toml").write_text(CONFIG)
    run = execute(load_config(tmp_path / "run.toml"), tmp_path / "out")
    assert [type(layer).__name__ for layer in run.clients["wide"].stem][-1] == "Tanh"
    again = fgn.load(tmp_path / "out")
    x = np.load(archive)["still"]
    assert np.array_equal(again.predict("wide", x), run.predict("wide", x))
    only = CONFIG[: CONFIG.index("[[data")] + CONFIG[CONFIG.rindex("[[data") :]
    (tmp_path / "run.toml").write_text(only)
    assert (
        execute(load_config(tmp_path / "run.toml"), tmp_path / "other").network[1].in_features == 4
    )


def test_a_config_names_inputs_for_a_network_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    network = textwrap.dedent(
        """
        import torch
        from torch import nn

        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.last = nn.Embedding(9, 3), nn.Linear(8, 5)

            def forward(self, sensors, words):
                return self.last(torch.cat([sensors, self.words(words).flatten(1)], dim=1))
        """
    )
    (tmp_path / "own_inputs.py").write_text(network)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        """\
rounds = 2

[data]
source = "files"
train = "rows.csv"
inputs = { sensors = ["load", "heat"], words = ["first", "last"] }
ids = "words"
standardize = true

[[data.clients]]
name = "a"
task = "regression"
targets = "hours"

[network]
name = "own_inputs:Both"

"""
    )
    run = execute(load_config(tmp_path / "run.toml", allow=["own_inputs"]), tmp_path / "out")
    assert run.predict("a", FRAME).shape == (ROWS, 1)
    (tmp_path / "run.toml").write_text(
        (tmp_path / "run.toml").read_text().replace('"own_inputs:Both"', '"mlp"\nwidths = [3]')
    )
    with pytest.raises(fgn.ConfigError, match="'mlp' takes one tensor, but the rows of client 'a'"):
        execute(load_config(tmp_path / "run.toml"), tmp_path / "no")


def test_what_cannot_be_is_refused(archive: Path) -> None:
    rows: dict[str, Any] = {"task": "classification", "train": archive, "x_key": "values"}
    table: dict[str, Any] = LONG
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**table, "ids": ["load"]}, "'load' is an id and 'heat' is none"),
        ({**table, "ids": ["visit"]}, "'visit' is named among .* ids, but is no input"),
        ({**table, "inputs": {"no name": ["load"]}}, "names must be those of a network's keyword"),
        ({**table, "inputs": {"a": ["load"], "b": ["load"]}}, "column 'load' more than once"),
        ({**table, "inputs": {"a": []}}, "inputs: a has no columns"),
        ({**table, "lengths": "n"}, "lengths is for arrays in an .npz file"),
        ({**table, "shape": [3]}, "shape is for arrays in an .npz file"),
        ({**rows, "inputs": ["values"]}, "inputs = { NAME = 'ARRAY' }"),
        ({**rows, "inputs": {"a": ["still", "values"]}}, "in an archive it is one array"),
        ({**rows, "lengths": "size"}, "no array 'size'"),
        ({**rows, "lengths": "still"}, "whole numbers of at least 0"),
        ({**rows, "x_key": "still", "lengths": "length"}, "how many of the 3 steps"),
        ({**rows, "lengths": {"a": "length"}}, "lengths must name inputs"),
        ({**rows, "ids": "values"}, "'values' must hold whole numbers"),
        ({**rows, "ids": "valves"}, "array in ids 'valves'"),
        (
            {**rows, "lengths": "length", "standardize": True},
            "not standardised where they are arrays",
        ),
        ({**rows, "x_key": "tokens", "ids": "tokens", "standardize": True}, "ids are not standard"),
        ({**rows, "y_key": "tokens"}, r"for a label at each place say shape = \[7\]"),
        ({**rows, "y_key": "tokens", "shape": [6]}, r"must hold labels of shape \(6,\) a row"),
        ({**rows, "stem": [4]}, r"stem must be a table such as \{ widths = \[16, 8\] \}"),
        ({**rows, "stem": {"widths": [4], "depth": 2}}, "key of the stem of client 'a' 'depth'"),
        ({**rows, "lengths": "length", "stem": {"widths": [4]}}, "takes numbers in one tensor"),
    ]
    for options, says in wrong:
        with pytest.raises(fgn.FedGradNormError, match=says):
            client_from_files("a", **options)
