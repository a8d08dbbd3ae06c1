"""What a run holds, and that it survives saving, loading and a new process, without pickle."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._runs import blueprint

X = np.random.default_rng(5).normal(size=(9, toys.FEATURES))
NAMES = ["a/b", "../up", "..", ".", "C:\\d", "per%cent", "ü", "长" * 60, "A", "a", "nul\0", "a\nb"]


class Wiggle(nn.Module):
    """A module class of the user's own."""

    def __init__(self, features: int = toys.FEATURES, outputs: int = 5) -> None:
        super().__init__()
        self.layer = nn.Linear(features, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sin()


def trained(network: nn.Module | None = None, **options) -> fgn.Run:
    network = toys.noisy_network() if network is None else network
    return flat.train(network, toys.clients(), rounds=4, batch_size=8, lr=0.01, **options)


def assert_same_predictions(left: fgn.Run, right: fgn.Run) -> None:
    for name in left.clients:
        for outputs in (False, True):
            one, other = (run.predict(name, X, outputs=outputs) for run in (left, right))
            assert np.array_equal(one, other), name


def test_a_new_process_predicts_the_same(tmp_path: Path) -> None:
    run = trained()
    run.save(tmp_path / "run")
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, json, numpy as np, torch, fedgradnorm as fgn\n"
        "torch.set_num_threads(1)\n"
        "run = fgn.load(sys.argv[1] + '/run')\n"
        "x = np.load(sys.argv[1] + '/x.npy')\n"
        "print(json.dumps({n: run.predict(n, x, outputs=True).tolist() for n in run.clients}))\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = {name: run.predict(name, X, outputs=True).tolist() for name in run.clients}
    assert json.loads(answer) == expected


def test_a_loaded_run_is_the_run(tmp_path: Path) -> None:
    run = trained()
    loaded = fgn.load(run.save(tmp_path / "run"))
    assert_same_predictions(run, loaded)
    assert toys.same(dict(run.network.state_dict()), dict(loaded.network.state_dict()))
    for name, head in run.heads.items():
        assert toys.same(dict(head.state_dict()), dict(loaded.heads[name].state_dict()))
    assert loaded.table.text() == run.table.text()
    assert loaded.weights == run.weights
    assert loaded.manifest["settings"] == json.loads(json.dumps(run.manifest["settings"]))
    assert loaded.finished


@pytest.mark.parametrize("options", [{}, {"share": "none"}], ids=["shared", "alone"])
def test_a_run_is_stored_as_json_csv_and_safetensors_alone(tmp_path: Path, options: dict) -> None:
    run = trained(folder=tmp_path / "folder", **options)
    run.save(tmp_path / "saved")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        assert path.suffix in {".json", ".csv", ".safetensors", ".txt"} or path.name == ".lock"
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                assert list(file.keys())
        else:
            path.read_text()
        assert not path.read_bytes().startswith(b"PK")  # torch.save writes zip files


def test_the_folder_of_a_finished_training_is_a_saved_run(tmp_path: Path) -> None:
    run = trained(folder=tmp_path / "run")
    assert_same_predictions(run, fgn.load(tmp_path / "run"))


@pytest.mark.parametrize("share", ["all", "none"])
def test_a_module_of_ones_own_is_given_again(tmp_path: Path, share: str) -> None:
    clients = toys.clients()
    head = nn.Sequential(Wiggle(5, 4), nn.Linear(4, 2))
    clients[1] = fgn.Client("side", toys.task("side"), toys.rows("side", 30), head=head)
    run = flat.train(Wiggle(), clients, rounds=2, share=share)
    run.save(tmp_path / "run")
    with pytest.raises(fgn.ModelError, match=r"load\(path, network=\.\.\.\)"):
        fgn.load(tmp_path / "run")
    with pytest.raises(fgn.ModelError, match=r"head of client 'side'.*heads=\{\.\.\.\}"):
        fgn.load(tmp_path / "run", network=Wiggle())
    given = {"side": nn.Sequential(Wiggle(5, 4), nn.Linear(4, 2))}
    assert_same_predictions(run, fgn.load(tmp_path / "run", network=Wiggle(), heads=given))
    with pytest.raises(fgn.RunFolderError, match="does not fit"):
        fgn.load(tmp_path / "run", network=Wiggle(outputs=7), heads=given)


@pytest.mark.parametrize(
    "make",
    [
        fgn.models.network2,
        lambda: nn.Sequential(nn.Linear(6, 4), *2 * [nn.LeakyReLU(0.3)], nn.Linear(4, 4)),
        lambda: nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 4, bias=False)),
        lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3, padding=1), nn.Flatten()),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.GELU("tanh")), nn.LayerNorm(4)),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU(), nn.Sequential(), nn.Tanh()),
    ],
    ids=["network2", "repeated", "statistics", "convolution", "nested", "odd"],
)
def test_networks_of_torch_layers_rebuild_themselves(tmp_path: Path, make) -> None:
    network = toys.seeded(make)
    width = 256 if make is fgn.models.network2 else 6
    rows = np.random.default_rng(0).normal(size=(12, width))
    client = fgn.Client("a", fgn.classification(2), train=(rows, np.arange(12) % 2))
    run = fgn.train(network, [client], rounds=2)
    loaded = fgn.load(run.save(tmp_path / "run"))
    assert repr(loaded.network) == repr(network)
    assert np.array_equal(
        run.predict("a", rows, outputs=True), loaded.predict("a", rows, outputs=True)
    )


def test_a_layer_used_twice_is_written_down_twice() -> None:
    activation = nn.ReLU()
    network = nn.Sequential(nn.Linear(6, 6), activation, nn.Linear(6, 6), activation)
    assert repr(blueprint.rebuild(blueprint.describe(network))) == repr(network)


def test_an_unknown_layer_in_a_saved_run_is_refused() -> None:
    for name in ("Parameter", "functional", "__name__", None, "NoSuchLayer"):
        with pytest.raises(fgn.RunFolderError, match="unknown layer"):
            blueprint.rebuild({"layer": name, "options": {}})


def test_any_client_name_is_safe(tmp_path: Path) -> None:
    clients = [toys.client(name, 12, "side") for name in NAMES]
    run = fgn.train(toys.network(), clients, rounds=2, folder=tmp_path / "in" / "run")
    written = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert written == {"in"}
    loaded = fgn.load(tmp_path / "in" / "run")
    assert list(loaded.clients) == NAMES
    assert_same_predictions(run, loaded)
    assert loaded.table.rows == run.table.rows


def test_double_precision_stays_double(tmp_path: Path) -> None:
    loaded = fgn.load(trained(toys.network(torch.float64)).save(tmp_path / "run"))
    assert {p.dtype for p in loaded.network.parameters()} == {torch.float64}
    assert loaded.predict("place", X).dtype == np.float64


def test_arrays_in_arrays_out_and_tensors_in_tensors_out() -> None:
    run = trained()
    assert run.predict("corner", X).dtype == np.int64
    assert isinstance(run.predict("corner", torch.from_numpy(X)), Tensor)
    assert run.predict("corner", X.tolist()).shape == (9,)
    assert run.predict("corner", X, outputs=True).shape == (9, 3)
    assert run.predict("place", X).shape == (9, 2)


def test_predicting_leaves_the_run_alone() -> None:
    run = trained()
    before = {name: b.clone() for name, b in run.network.state_dict().items()}
    first = run.predict("corner", X, outputs=True)
    run.predict("place", X)
    assert np.array_equal(run.predict("corner", X, outputs=True), first)
    assert toys.same(before, dict(run.network.state_dict()))


def test_predictions_are_those_the_table_was_made_of() -> None:
    run = trained()
    for client in toys.clients():
        x, y = client.test
        output = run.predict(client.name, x, outputs=True)
        table = run.history[(run.history.client == client.name) & (run.history.split == "test")]
        loss = float(client.task.loss(output, y.to(output.dtype) if y.ndim > 1 else y))
        assert loss == pytest.approx(table.loss.iloc[-1], rel=1e-6)


def test_an_unknown_client_is_answered_with_the_nearest() -> None:
    with pytest.raises(fgn.ConfigError, match="unknown client 'plaice'; did you mean 'place'"):
        trained().predict("plaice", X)


def test_the_summary_has_a_row_per_client() -> None:
    summary = trained().summary()
    assert list(summary.index) == list(toys.NAMES)
    assert summary.loc["corner", "first_loss"] > 0
    assert {"weight", "last_loss", "split", "accuracy", "mae", "r2"} <= set(summary.columns)
    assert (summary.split == "test").all()


def test_the_server_of_a_federation_sums_up_what_clients_reported(tmp_path: Path) -> None:
    """It has neither their heads nor what their tasks are."""
    run = trained()
    manifest = {**run.manifest, "clients": {}, "weights": {}}
    server = fgn.load(replace(run, clients={}, manifest=manifest).save(tmp_path / "run"))
    summary = server.summary()
    assert list(summary.index) == list(toys.NAMES)
    columns = ["weight", "first_loss", "last_loss", "accuracy"]
    pd.testing.assert_frame_equal(summary[columns], run.summary()[columns])


def test_the_manifest_tells_how_to_make_the_run_again() -> None:
    manifest = trained(seed=7).manifest
    assert manifest["settings"]["seed"] == 7
    assert manifest["weighting"]["name"] == "GradNorm"
    assert manifest["weighting"]["gamma"] == 0.9
    assert manifest["norm_layer"] == ["4.weight", "4.bias"]
    assert {"fedgradnorm", "python", "torch", "numpy", "platform"} <= set(manifest["versions"])
    assert (
        manifest["clients"]["place"] | {"kind": "regression", "size": 24}
        == manifest["clients"]["place"]
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "run.json").unlink(), "is no run folder"),
        (lambda f: (f / "run.json").write_text("{"), "is damaged"),
        (lambda f: (f / "run.json").write_text("[]"), "cannot read"),
        (lambda f: (f / "run.json").write_text('{"format": 99}'), "cannot read"),
        (lambda f: (f / "heads.safetensors").unlink(), "no trained network"),
        (lambda f: (f / "heads.safetensors").write_bytes(b"x"), "is damaged"),
        (lambda f: (f / "network.safetensors").write_bytes(b""), "is damaged"),
        (lambda f: (f / "network.safetensors").unlink(), "lost its network.safetensors"),
        (lambda f: (f / "metrics.csv").unlink(), "metrics.csv is missing"),
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, spoil, message: str) -> None:
    folder = trained().save(tmp_path / "run")
    spoil(folder)
    with pytest.raises(fgn.RunFolderError) as error:
        fgn.load(folder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_is_written_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained()
    assert list(tmp_path.iterdir()) == []
