"""Programs of clients whose rows are no single tensor: named inputs, sequences, first parts."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
from data.small_tables import client_from_files

pytestmark = pytest.mark.slow

ENDS = ("pt2", "onnx")
GENERATOR = np.random.default_rng(0)
LENGTHS = np.arange(20) % 5 + 1
FRAME = pd.DataFrame({"visit": np.repeat(np.arange(20), LENGTHS)})
FRAME["load"] = GENERATOR.normal(1e6, 30, len(FRAME))
FRAME["kind"] = GENERATOR.choice(["axial", "radial"], len(FRAME))
FRAME["word"] = GENERATOR.integers(0, 9, len(FRAME))
FRAME["hours"] = 500.0 + FRAME["visit"]


class Both(nn.Module):
    """Numbers beside words, of rows or of steps."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 3), nn.Linear(width + 3, 5)

    def forward(
        self, sensors: Tensor, words: Tensor, words_mask: Tensor | None = None, **_: Tensor
    ) -> Tensor:
        vectors = self.words(words)
        if words_mask is not None:
            real = words_mask[..., None].to(vectors.dtype)
            vectors = (vectors * real).sum(dim=1) / real.sum(dim=1)
            sensors = sensors.sum(dim=1) if sensors.ndim > 2 else sensors
        return self.last(torch.cat([sensors, vectors.flatten(1)], dim=1))


class Mean(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask[..., None].to(x.dtype)
        return self.layer((x * real).sum(dim=1) / real.sum(dim=1))


class Recurrent(nn.Module):
    """torch.export counts the steps of a recurrent layer, so their number would be fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(2, 5, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self.layer(x)[0] * mask[..., None].to(x.dtype)).sum(dim=1)


def answer(path: Path, **inputs: Tensor) -> Tensor:
    """What the program says, asked without this library."""
    if path.suffix == ".pt2":
        first = [inputs.pop("x")] if "x" in inputs else []
        return torch.export.load(path).module()(*first, **inputs)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {k: v.numpy() for k, v in inputs.items()})[0])


@pytest.fixture(params=ENDS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "onnx":
        pytest.importorskip("onnxscript")
    return tmp_path / f"one.{request.param}"


def trained(network: nn.Module, client: fgn.Client) -> fgn.Run:
    return fgn.train(network, [client], rounds=2)


def test_named_arrays_are_the_programs_arguments(path: Path) -> None:
    x = {"sensors": torch.randn(20, 3), "words": torch.arange(20)[:, None] % 9}
    run = trained(Both(), fgn.Client("a", fgn.regression(1), (x, np.arange(20.0))))
    with pytest.raises(fgn.ConfigError, match="give some as x"):
        run.export("a", path)
    run.export("a", path, x=x)
    few = {name: part[:7] for name, part in x.items()}
    torch.testing.assert_close(answer(path, **few), run.predict("a", few, outputs=True))


def test_a_sequence_among_named_arrays(path: Path) -> None:
    rows = [torch.from_numpy(GENERATOR.integers(0, 9, size)) for size in LENGTHS]
    x = {"sensors": torch.randn(20, 3), "words": fgn.sequences(rows)}
    run = trained(Both(), fgn.Client("a", fgn.regression(1), (x, np.arange(20.0))))
    run.export("a", path, x=x)
    few = {"sensors": x["sensors"][:3], "words": fgn.sequences(rows[:3])}
    words, mask = few["words"].padded()
    found = answer(path, sensors=few["sensors"], words=words, words_mask=mask)
    expected = run.predict("a", few, outputs=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_sequences_are_padded_beside_a_mask(path: Path) -> None:
    rows = [torch.randn(size, 2) for size in LENGTHS.tolist()]
    client = fgn.Client("a", fgn.classification(2), (fgn.sequences(rows), np.arange(20) % 2))
    run = trained(Mean(2), client)
    run.export("a", path, x=rows)
    x, mask = fgn.sequences(rows[:3]).padded()
    expected = run.predict("a", rows[:3], outputs=True)
    np.testing.assert_allclose(answer(path, x=x, mask=mask), expected, rtol=1e-5, atol=1e-6)


def test_a_program_for_one_number_of_steps_is_refused(tmp_path: Path) -> None:
    rows = [torch.randn(size, 2) for size in LENGTHS.tolist()]
    client = fgn.Client("a", fgn.classification(2), (fgn.sequences(rows), np.arange(20) % 2))
    with pytest.raises(fgn.ModelError, match=r"'a' cannot be exported.*use run\.predict"):
        trained(Recurrent(), client).export("a", tmp_path / "a.pt2", x=rows)
    assert not list(tmp_path.iterdir())


OPTIONS: dict[str, Any] = {
    "task": "regression",
    "train": FRAME,
    "targets": "hours",
    "categories": ["kind"],
    "standardize": True,
}


def test_columns_in_groups_are_one_table_of_the_program(path: Path) -> None:
    inputs = {"sensors": ["load", "kind"], "words": ["word"]}
    client = client_from_files("a", **OPTIONS, inputs=inputs, ids="words").client
    run = trained(Both(), client)
    run.export("a", path)
    codes = torch.tensor([[1e6, 1.0, 3.0], [1e6 + 9, 0.0, 8.0]], dtype=torch.float64)
    torch.testing.assert_close(answer(path, x=codes), run.predict("a", codes, outputs=True))
    if path.suffix == ".pt2":
        with zipfile.ZipFile(path) as file:
            (name,) = [name for name in file.namelist() if name.endswith("columns.json")]
            columns = json.loads(file.read(name))
        assert [column.get("group") for column in columns] == ["sensors", "sensors", "words"]


def test_steps_of_a_long_table_are_padded_codes(path: Path) -> None:
    inputs = {"sensors": ["load", "kind"], "words": ["word"]}
    options = {**OPTIONS, "inputs": inputs, "ids": "words", "sequence": "visit"}
    run = trained(Both(), client_from_files("a", **options).client)
    run.export("a", path)
    long = torch.tensor(
        [[1e6, 1, 3, 0], [1e6 + 9, 0, 8, 0], [1e6 - 7, 0, 2, 1]], dtype=torch.float64
    )
    x = torch.zeros(2, 2, 3, dtype=torch.float64)
    x[0], x[1, 0] = long[:2, :3], long[2, :3]
    mask = torch.tensor([[True, True], [True, False]])
    expected = run.predict("a", long, outputs=True)
    np.testing.assert_allclose(answer(path, x=x, mask=mask), expected, rtol=1e-5)


def test_a_first_part_is_part_of_the_program(path: Path) -> None:
    x = torch.randn(20, 9)
    client = fgn.Client("a", fgn.regression(1), (x, x[:, 0]), stem=nn.Linear(9, 4))
    run = trained(nn.Linear(4, 3), client)
    run.export("a", path)
    torch.testing.assert_close(answer(path, x=x[:3]), run.predict("a", x[:3], outputs=True))
