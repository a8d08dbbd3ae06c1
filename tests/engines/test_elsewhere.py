"""Clients whose data is on another rank: what each rank is told of them, and what is refused."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import toys
from experiments.small_config import small_config
from fedgradnorm._engines import Elsewhere, own_part, with_others
from fedgradnorm._engines.ranked_engine import _share
from fedgradnorm._engines.ranks import World
from fedgradnorm._errors import ConfigError
from fedgradnorm._federation.making_heads import make_head
from fedgradnorm._round.settings import Settings
from fedgradnorm.experiments import _execute, load_config


def met(parts: Sequence[list[fgn.Client]], reason: str | None = None) -> list[list[fgn.Client]]:
    """What each of several ranks knows when it was given one of ``parts``; ranks are threads."""
    barrier, said = threading.Barrier(len(parts), timeout=30), [b""] * len(parts)

    class Thread(World):
        def gather(self, value: Any) -> list[Any]:
            said[self.rank] = pickle.dumps(value)
            barrier.wait()
            found = [pickle.loads(each) for each in said]
            barrier.wait()
            return found

    with ThreadPoolExecutor(len(parts)) as pool:
        ranks = [Thread(k, len(parts)) for k in range(len(parts))]
        return list(pool.map(lambda w: with_others(w, parts[w.rank], reason), ranks))


def five() -> list[fgn.Client]:
    return [
        toys.client(f"{kind}{i}", 30, kind) for i, kind in enumerate((*toys.NAMES, *toys.NAMES))
    ][:5]


def test_each_rank_knows_all_clients_and_holds_the_rows_of_its_own():
    clients = five()
    for rank, found in enumerate(met([clients[0::2], clients[1::2]])):
        assert [c.name for c in found] == [c.name for c in clients]
        assert _share(found, World(rank, 2)) == [[0, 2, 4], [1, 3]][rank]
        for k, (light, client) in enumerate(zip(found, clients, strict=True)):
            assert isinstance(light, Elsewhere) == (k % 2 != rank)
            assert (light.size, light.drawn) == (30, 30)
            assert len(light.train[0]) == (30 if k % 2 == rank else 4)
            if client.task.has_real_targets:
                assert light.target_size == client.target_size
            heads = (make_head(toys.network(), c, 0) for c in (light, client))
            assert torch.equal(*(toys.parameters(head) for head in heads))
    with pytest.raises(ConfigError, match="rows of client 'corner0' are on rank 0"):
        met([clients[0::2], clients[1::2]])[1][0].fingerprint()


def test_what_a_rank_is_told_does_not_grow_with_the_data():
    x = np.zeros((100_000, 8), np.float32)
    client = fgn.Client("a", fgn.regression(1), train=(x, x[:, :1]), test=(x, x[:, :1]))
    assert len(pickle.dumps(Elsewhere.of_client(client, 0))) < 10_000


def test_parts_of_any_size_stay_where_they_are():
    clients = five()
    every = met([clients[:1], [], clients[1:]])
    assert [c.name for c in every[2]] == ["corner0", "side1", "place2", "corner3", "side4"]
    assert [_share(every[k], World(k, 3)) for k in range(3)] == [[0], [], [1, 2, 3, 4]]


def test_all_clients_on_every_rank_stay_as_they_are():
    clients = five()
    assert met([clients, clients]) == [clients, clients]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head": torch.nn.Linear(5, 2)}, "'side1' has a head of its own"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-3}}, "'side1' has privacy"),
    ],
)
def test_who_cannot_be_told_of_is_named_on_every_rank(change, reason):
    clients = five()
    clients[1] = replace(clients[1], **change)
    with pytest.raises(ConfigError, match=f"{reason}; make all clients on every rank"):
        met([clients[0::2], clients[1::2]])
    assert own_part(clients, 1, 2) == clients


def test_a_client_on_two_ranks_and_a_run_that_needs_all_are_refused():
    clients = five()
    with pytest.raises(ConfigError, match="client 'corner3' is on several of them"):
        met([clients[:4], clients[3:]])
    reason = Settings(share="none").parting_obstacle()
    with pytest.raises(ConfigError, match="clients train alone on every rank"):
        met([clients[:2], clients[2:]], reason)


def test_a_rank_of_a_config_keeps_its_own():
    clients = five()
    assert [c.name for c in own_part(clients, 1, 3)] == ["side1", "side4"]
    assert own_part(clients, 1, 6) == clients


@pytest.mark.parametrize(("rank", "own"), [(0, "class"), (1, "value")])
def test_a_rank_lets_go_of_a_configs_clients_that_it_does_not_run(rank, own, tmp_path, monkeypatch):
    def look(network: object, clients: list[fgn.Client], *_: object, **__: object) -> list[str]:
        assert [client.name for client in clients] == [own]
        gc.collect()
        known = [found for found in gc.get_objects() if type(found) is fgn.Client]
        return sorted({found.name for found in known} & {"class", "value"})

    monkeypatch.setattr(_execute, "train_with", look)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    config = load_config(small_config(tmp_path))
    assert _execute.execute(config, tmp_path / "run") == [own]
