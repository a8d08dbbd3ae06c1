"""Random federations of divided networks, other inputs, schedules and clips: a few laws of all."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedgradnorm as fgn
import toys

WIDTH = 4


class Net(nn.Module):
    """Takes one tensor or two named ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, WIDTH)

    def forward(self, x: Tensor | None = None, left: Any = None, right: Any = None) -> Tensor:
        x = torch.cat([left, right], dim=1) if x is None else x
        return self.last(torch.tanh(self.norm(self.first(x))))


HOW = st.fixed_dictionaries(
    {
        "shared": st.sampled_from(["*", "!*Norm*", "last", ["first", "last", "!first.bias"]]),
        "frozen": st.sampled_from([None, "first.bias", "norm"]),
        "server_schedule": st.sampled_from([None, "cosine", {"name": "step", "step_size": 2}]),
        "head_schedule": st.sampled_from([None, "linear"]),
        "clip": st.sampled_from([None, 0.05]),
        "head_clip": st.sampled_from([None, 0.05]),
        "schedule": st.sampled_from(["alternating", "together"]),
        "shared_steps": st.integers(1, 2),
        "head_steps": st.integers(0, 2),
    }
)


def federation(named: bool, stem: bool, seed: int) -> list[fgn.Client]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 4))
    kinds = [(fgn.classification(2), (x[:, 0] > 0).astype(int)), (fgn.regression(1), x[:, 1])]
    rows: Any = {"left": x[:, :1], "right": x[:, 1:]} if named else x
    clients = [fgn.Client(f"c{i}", task, (rows, y)) for i, (task, y) in enumerate(kinds)]
    if stem:
        wide = rng.normal(size=(12, 7))
        front = toys.seeded(lambda: nn.Linear(7, 4))
        clients.append(fgn.Client("wide", fgn.regression(1), (wide, wide[:, 0]), stem=front))
    return clients


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(how=HOW, named=st.booleans(), stem=st.booleans(), seed=st.integers(0, 99))
def test_the_engine_that_is_chosen_gives_the_loops_run_and_all_is_kept(how, named, stem, seed):
    if how["shared"] == "last" and how["frozen"] is None:
        how = {**how, "gauge": "last.weight"}
    how = {**how, "rounds": 4, "batch_size": 8, "lr": 0.05, "seed": seed, "device": "cpu"}

    def train(**more: Any) -> fgn.Run:
        return fgn.train(toys.seeded(Net), federation(named, stem, seed), **{**how, **more})

    loop = train(engine="loop")
    with tempfile.TemporaryDirectory() as folder:
        kept = {"folder": f"{folder}/run", "checkpoint_every": 1}
        toys.interrupted(train, at=2, **kept)
        whole = train(**kept, resume=True)
        loaded = fgn.load(f"{folder}/run", network=Net())
    for client in federation(named, stem, seed):
        x = client.train[0]
        expected = whole.predict(client.name, x, kind="output")
        assert torch.equal(loaded.predict(client.name, x, kind="output"), expected)
        found = loop.predict(client.name, x, kind="output")
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
