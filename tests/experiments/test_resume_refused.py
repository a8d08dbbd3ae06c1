"""What cannot be resumed, loaded or started over, and what is said about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import fedgradnorm as fgn
import flat
import toys
from experiments import killed_training
from experiments.killed_training import go
from experiments.resuming import begun


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"lr": 0.02}, r"with other settings.*settings\.lr = .* there, 0\.02 here"),
            ({"seed": 1}, r"with other settings.*settings\.seed = 0 there, 1 here"),
            ({"weighting": fgn.GradNorm(gamma=0.5)}, r"other weighting.*gamma = .*, 0\.5 here"),
            ({"weighting": fgn.Equal()}, r"other weighting.*name = 'GradNorm' there, 'Equal' here"),
        ],
    )
    def test_resuming_with_other_settings(self, tmp_path: Path, change: dict, message: str) -> None:
        folder = begun(tmp_path / "run")
        before = (folder / "metrics.csv").read_bytes()
        with pytest.raises(fgn.RunFolderError, match=message):
            go(folder, **change)
        assert (folder / "metrics.csv").read_bytes() == before
        assert go(folder).finished  # and it let go of the folder

    @pytest.mark.parametrize("network", [toys.network, lambda: toys.seeded(Custom)])
    def test_resuming_with_another_network(
        self, tmp_path: Path, network: Callable[[], Any]
    ) -> None:
        folder = begun(tmp_path / "run")
        options = {**killed_training.options(), "folder": folder, "resume": True}
        with pytest.raises(fgn.RunFolderError, match="cannot resume with other network"):
            flat.train(network(), toys.clients(), **options)

    def test_resuming_with_other_clients(self, tmp_path: Path) -> None:
        folder = begun(tmp_path / "run")
        options = {**killed_training.options(), "folder": folder, "resume": True}
        with pytest.raises(fgn.RunFolderError, match="cannot resume with other clients"):
            flat.train(toys.noisy_network(), toys.clients()[:2], **options)

    def test_resuming_with_other_values_in_as_many_rows(self, tmp_path: Path) -> None:
        folder = begun(tmp_path / "run")
        first, *rest = toys.clients()
        x, y = first.train
        changed = dataclasses.replace(first, train=(x + 1e-3, y))
        options = {**killed_training.options(), "folder": folder, "resume": True}
        with pytest.raises(fgn.RunFolderError, match=f"other data: client '{first.name}'"):
            flat.train(toys.noisy_network(), [changed, *rest], **options)
        assert go(folder).finished

    def test_resuming_a_module_of_ones_own_that_has_another_shape(self, tmp_path: Path) -> None:
        def once(width: int, **more: Any) -> fgn.Run:
            network = toys.seeded(lambda: Custom(width))
            return flat.train(network, toys.clients(), rounds=2, folder=tmp_path / "run", **more)

        once(5)
        with pytest.raises(fgn.RunFolderError, match="does not fit"):
            once(6, resume=True)

    def test_starting_over_a_run_that_is_there(self, tmp_path: Path) -> None:
        folder = begun(tmp_path / "run")
        with pytest.raises(fgn.RunFolderError, match="already holds a run; resume it"):
            fgn.train(toys.noisy_network(), toys.clients(), folder=folder)

    def test_resuming_what_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(fgn.RunFolderError, match="is no run folder"):
            flat.train(toys.network(), toys.clients(), folder=tmp_path / "run", resume=True)
        assert not (tmp_path / "run").exists()

    def test_loading_what_is_not_finished(self, tmp_path: Path) -> None:
        folder = begun(tmp_path / "run")
        with pytest.raises(fgn.RunFolderError, match="holds no trained network yet; resume"):
            fgn.load(folder)

    @pytest.mark.parametrize("name", ["checkpoint.safetensors", "metrics.csv", "run.json"])
    def test_resuming_from_a_damaged_file(self, tmp_path: Path, name: str) -> None:
        folder = begun(tmp_path / "run")
        path = folder / name
        path.write_bytes(path.read_bytes()[:40])
        with pytest.raises(fgn.RunFolderError, match=name.replace(".", r"\.")):
            go(folder)

    def test_bad_input_leaves_no_folder(self, tmp_path: Path) -> None:
        for bad in ({"rounds": -1}, {"norm_layer": "nowhere"}, {"head_optimizer": "adom"}):
            with pytest.raises(fgn.FedGradNormError):
                flat.train(toys.network(), toys.clients(), folder=tmp_path / "run", **bad)
            assert not (tmp_path / "run").exists()


class Custom(toys.nn.Module):
    """A network that cannot be written down."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.inner = toys.nn.Linear(toys.FEATURES, width)
        self.outer = toys.nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))
