"""Clients of a deployment whose files hold more than numbers: read by their own client.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedgradnorm as fgn
import flat
from data.small_tables import client_from_files
from engines.flower.direct import OPTIONS, Together
from fedgradnorm._flower.client_session import ClientSession
from fedgradnorm._flower.federation_file import read_client
from fedgradnorm._toml import to_toml
from fedgradnorm.experiments._config.config_file import build

ROWS = 40
RUN = """\
rounds = 6

[data]
source = "files"

[network]
name = "mlp"
widths = [5]
inputs = 6

"""
COMMON: dict[str, Any] = {
    "inputs": ["load", "oil", "kind"],
    "categories": {"kind": ["axial", "radial", "screw"]},
    "missing": {"oil": "indicator", "kind": "mean"},
    "standardize": True,
}
OWN: dict[str, dict[str, Any]] = {
    "north": {"task": "regression", "targets": "hours"},
    "south": {"task": "classification", "targets": "state"},
    "west": {
        "task": "regression",
        "targets": "hours",
        "inputs": ["load", "heat"],
        "categories": None,
        "missing": "mean",
        "stem": {"widths": [6]},
    },
}


def table(seed: int) -> pd.DataFrame:
    """Raw rows: gaps in numbers and texts, a category that another client may not have."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"load": draw.normal(size=ROWS), "heat": draw.normal(60, 5, ROWS)})
    frame["oil"] = np.where(draw.random(ROWS) < 0.3, np.nan, frame["load"] + 10)
    frame["kind"] = np.where(
        draw.random(ROWS) < 0.2, None, draw.choice(["axial", "radial", "screw"], ROWS)
    )
    frame["hours"] = 5000 - 400 * frame["load"]
    frame["state"] = np.where(frame["load"] > 0, "worn", "fine")
    return frame


def options(name: str) -> dict[str, Any]:
    both = {**COMMON, **OWN[name], "train": "rows.csv"}
    return {key: value for key, value in both.items() if value is not None}


class Deployed(Together):
    """Participants that are made as ``join`` makes them: from the files of each client."""

    def participant(self, name: str) -> ClientSession:
        given = read_client(self.folder / name / "client.toml")
        config = given.run_config()
        network, (client,), _, _ = build(config, [given.load(config)])
        return ClientSession(network, client, self.agreement, given.path("state"))

    def results(self) -> dict[str, fgn.Run]:
        self.server.finish()
        place = f"state/{self.server.run}/result"
        return {name: fgn.load(self.folder / name / place) for name in self.names}


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    for seed, name in enumerate(OWN):
        home = tmp_path / name
        home.mkdir()
        table(seed).to_csv(home / "rows.csv", index=False)
        (home / "run.toml").write_text(RUN)
        data = {"source": "files", "clients": [{"name": name, **options(name)}]}
        about = {"name": name, "server": "here:9092", "config": "run.toml"}
        (home / "client.toml").write_text(to_toml({**about, "data": data}))
    return tmp_path


def test_clients_with_categories_gaps_and_first_parts_join_train_and_predict_raw_rows(
    homes: Path,
) -> None:
    def loaded() -> list[fgn.Client]:
        return [client_from_files(name, **options(name), base=homes / name).client for name in OWN]

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 5), torch.nn.ReLU())
    together = Deployed(homes, fgn.GradNorm(), make=lambda: network, clients=loaded)
    together.run(3)
    together.restart("west")
    shared = together.run()
    alone = flat.train(network, loaded(), weighting=fgn.GradNorm(), executor="loop", **OPTIONS)
    vector = torch.cat([p.detach().flatten() for p in alone.network.parameters()])
    assert torch.equal(shared, vector)
    fresh = table(9)[list(reversed(table(9).columns))]
    for name, result in together.results().items():
        answer = result.predict(name, fresh, outputs=True)
        assert np.array_equal(answer, alone.predict(name, fresh, outputs=True))
        assert not np.array_equal(
            answer, result.predict(name, fresh.assign(load=0.0), outputs=True)
        )
    label = together.results()["south"].predict("south", fresh, kind="label")
    assert set(label) <= {"fine", "worn"}
