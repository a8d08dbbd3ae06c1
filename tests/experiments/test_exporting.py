"""A client as one program: it answers as the run does, or there is no file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._cli import app
from fedgradnorm.data import client_from_arrays

X = np.random.default_rng(5).normal(size=(9, toys.FEATURES))


def scaled_clients() -> list[fgn.Client]:
    """One with classes, one with numbers; inputs and targets far from mean 0 and deviation 1."""
    return [
        client_from_arrays(
            name,
            toys.task(name),
            (1e6 + 30 * x, y if name == "side" else 500 + 40 * y),
            standardize=True,
        )
        for name, (x, y) in ((name, toys.rows(name, 40)) for name in ("side", "place"))
    ]


def program(path: Path) -> nn.Module:
    return torch.export.load(path).module()


@pytest.mark.parametrize("how", [{}, {"share": "none"}], ids=["shared", "alone"])
def test_the_program_answers_as_the_run_does(tmp_path: Path, how: dict) -> None:
    """Raw inputs in, classes' scores or targets' units out, with the client's own statistics."""
    network = toys.noisy_network()
    run = flat.train(network, scaled_clients(), rounds=4, batch_size=8, lr=0.01, **how)
    loaded = fgn.load(run.save(tmp_path / "run"))
    for name in run.clients:
        before = {key: b.clone() for key, b in run.networks[name].named_buffers()}
        answer = program(loaded.export(name, tmp_path / f"{name}.pt2"))
        assert toys.same(before, dict(run.networks[name].named_buffers()))
        for rows in (1, 2, 9):
            x = torch.from_numpy(1e6 + 30 * X[:rows])
            torch.testing.assert_close(answer(x), run.predict(name, x, outputs=True))
    assert run.predict("place", 1e6 + 30 * X).mean() > 100
    assert sorted(path.name for path in tmp_path.glob("*.pt2")) == ["place.pt2", "side.pt2"]


def test_rows_that_are_given_decide_the_kind_of_numbers(tmp_path: Path) -> None:
    run = fgn.train(toys.network(torch.float32), toys.clients(), rounds=1)
    for x in (torch.from_numpy(X), torch.from_numpy(X[:1]), torch.ones(3, 6, dtype=torch.int64)):
        answer = program(run.export("place", tmp_path / "place.pt2", x=x))
        torch.testing.assert_close(answer(x), run.predict("place", x))
        with pytest.raises(RuntimeError, match="dtype"):
            answer(x.half())
    plain = program(run.export("place", tmp_path / "place.pt2"))
    torch.testing.assert_close(plain(x.float()), run.predict("place", x))


def test_images_and_words(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    y = np.arange(12) % 2
    pictures = fgn.Client("p", fgn.classification(2), (numbers.normal(size=(12, 1, 8, 8)), y))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    words = fgn.Client("w", fgn.classification(2), (numbers.integers(0, 5, size=(12, 3)), y))
    spell = nn.Sequential(nn.Embedding(5, 4), nn.Flatten())
    for network, client in ((net, pictures), (spell, words)):
        run = fgn.train(network, [client], rounds=1)
        answer = program(run.export(client.name, tmp_path / "one.pt2"))
        x = torch.as_tensor(client.train[0])
        x = x.float() if x.is_floating_point() else x
        expected = run.predict(client.name, x, outputs=True)
        torch.testing.assert_close(answer(x), expected)


@pytest.mark.slow
def test_a_process_without_this_library_runs_it(tmp_path: Path) -> None:
    run = fgn.train(toys.noisy_network(), scaled_clients(), rounds=1)
    run.export("side", tmp_path / "side.pt2")
    code = (
        "import sys, torch\n"
        "sys.modules['fedgradnorm'] = None\n"
        "answer = torch.export.load(sys.argv[1]).module()\n"
        "print(answer(torch.ones(1, 6, dtype=torch.float64)).tolist())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "side.pt2")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    x = torch.ones(1, toys.FEATURES, dtype=torch.float64)
    assert said.strip() == str(run.predict("side", x, outputs=True).tolist())


class Moody(nn.Module):
    """What it does depends on the values: no program can be made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(toys.FEATURES, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


class Counting(nn.Module):
    """It answers otherwise each time it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(toys.FEATURES, 5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) + self.calls


@pytest.mark.parametrize(
    ("network", "words"),
    [(Moody(), "as a program: .*"), (Counting(), "away from run.predict")],
    ids=["moody", "counting"],
)
def test_what_cannot_be_exported_is_named_and_leaves_no_file(
    tmp_path: Path, network: nn.Module, words: str
) -> None:
    run = flat.train(network, [toys.client("side")], rounds=1, executor="loop")
    with pytest.raises(fgn.ModelError, match=f"client 'side' cannot be exported: .*{words}"):
        run.export("side", tmp_path / "side.pt2")
    assert not list(tmp_path.iterdir())


def test_wrong_names_and_places(tmp_path: Path) -> None:
    run = fgn.train(toys.network(), [toys.client("side")], rounds=1)
    with pytest.raises(fgn.ConfigError, match="unknown client 'sode'; did you mean 'side'"):
        run.export("sode", tmp_path / "m.pt2")
    with pytest.raises(fgn.ConfigError, match="there is no folder"):
        run.export("side", tmp_path / "none" / "m.pt2")
    with pytest.raises(fgn.ConfigError, match=r"it must end with \.pt2"):
        run.export("side", tmp_path / "m.pth")
    with pytest.raises(fgn.ConfigError, match="it is a folder"):
        run.export("side", tmp_path)
    with pytest.raises(fgn.DataError, match="client 'side'"):
        run.export("side", tmp_path / "m.pt2", x=np.ones((3, 2)))
    del run.manifest["clients"]["side"]["inputs"]
    with pytest.raises(fgn.ConfigError, match="give some as x"):
        run.export("side", tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path: Path) -> None:
    run = fgn.train(toys.network(), toys.clients(), rounds=1, folder=tmp_path / "run")
    file = tmp_path / "corner.pt2"
    result = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "corner", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("program: ")
    x = torch.from_numpy(X)
    torch.testing.assert_close(program(file)(x), run.predict("corner", x, outputs=True))
    result = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "nobody", str(file)])
    assert result.exit_code == 2
    assert "unknown client 'nobody'" in result.stderr
