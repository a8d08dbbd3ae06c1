"""A private federation of real processes over TLS, killed in every phase."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import torch

import fedgradnorm as fgn
import toys
from engines.flower.direct import Together
from engines.flower.machines import NAMES, Machines, children, finished, kill, until
from engines.flower.secret import Secret
from fedgradnorm._flower.join import joined
from fedgradnorm._runs.history import read_history
from fedgradnorm.experiments._config.config_file import build, clients_of, load_config

pytestmark = pytest.mark.slow
PATIENT = {"deadline": 15.0, "minimum": 3, "attempts": 30, "misses": 0, "private": True}


def in_this_process(kind, machines: Machines, folder: Path) -> torch.Tensor:
    config = load_config(machines.config)
    clients = clients_of(config)
    network, _, weighting, settings = build(config, clients)
    given = {key: value for key, value in asdict(settings).items() if key != "patience"}
    return kind(folder, weighting, make=lambda: network, clients=lambda: clients, **given).run()


def steps(machines: Machines, name: str) -> list[str]:
    """How far the client's newest attempts have come, by its own file."""
    found = list(machines.homes[name].glob("state/*/masking.json"))
    table = json.loads(found[0].read_text())["attempts"] if found else {}
    return [one["step"] for one in table.values()]


def test_killed_in_every_phase_it_ends_with_the_network_of_an_undisturbed_one(
    tmp_path, record_testsuite_property
):
    """Killed: clients with keys shown, letters written, an input sent, shares shown; the server."""
    machines = Machines(tmp_path, rounds=3, **PATIENT)
    with joined(list(machines.homes.values())) as clients:

        def kill_client(number: int, step: str) -> None:
            until(lambda: step in steps(machines, NAMES[number])[-2:])
            until(lambda: children(clients[number]))
            kill(children(clients[number])[0])

        with machines.serve() as server:
            kill_client(0, "keys")
            until(lambda: machines.rounds() >= 1)
            kill_client(1, "input")
            kill(server.pid)
            server.wait()
        with machines.serve("--resume") as server:
            kill_client(2, "letters")
            kill_client(0, "revealed")  # its shares are shown
            out = finished(server, 0)
    assert "3/3" in out
    found = toys.parameters(fgn.load(machines.run).network)
    assert torch.equal(found, in_this_process(Secret, machines, tmp_path / "undisturbed"))
    plain = in_this_process(Together, machines, tmp_path / "plain")
    apart = float((found - plain).abs().max())
    record_testsuite_property("a private federation over TLS: apart from the plain", f"{apart:.1e}")
    assert apart < 1e-6  # float32
    assert {row["client"] for row in read_history(machines.run / "metrics.csv").rows} == {"all"}
    for name in NAMES:
        (result,) = machines.homes[name].glob("state/*/result")
        rows = [row for row in fgn.load(result).table.rows if row["split"] == "batch"]
        assert [row["round"] for row in rows] == [1, 2, 3]
        assert all(row["weight"] > 0 for row in rows)
        private = [machines.homes[name] / "signing.key", *machines.homes[name].glob("state/**/*")]
        assert not [path for path in private if path.is_file() and path.stat().st_mode & 0o077]
