"""Real processes on loopback: TLS, keys, three rounds; and everything that may go wrong."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import torch

import fedgradnorm as fgn
import toys
from engines.flower.direct import Together
from engines.flower.machines import (
    NAMES,
    SHARING,
    TASKS,
    Machines,
    children,
    finished,
    kill,
    most_memory,
    until,
)
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.join import joined
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.history import read_history
from fedgradnorm.experiments._config.config_file import build, clients_of, load_config
from fedgradnorm.experiments._execute import execute
from loopback import assert_alone, run_by, way_inside

pytestmark = pytest.mark.slow
FEDERATE = Path(__file__).with_name("federate.py")
ATTACKER = Path(__file__).with_name("attacker.py")


def alone(machines: Machines) -> fgn.Run:
    """The same config in this process, ended with its last round."""
    change = ["compute.executor='loop'", "keep_best=false"]
    return execute(load_config(machines.config, change), machines.folder / "alone")


def undisturbed(machines: Machines) -> dict[str, fgn.Run]:
    """What the clients of this federation keep where nothing is lost, all in this process."""
    config = load_config(machines.config)
    clients = clients_of(config)
    network, _, weighting, settings = build(config, clients)
    together = Together(
        machines.folder / "undisturbed",
        weighting,
        make=lambda: network,
        clients=lambda: clients,
        **{key: value for key, value in asdict(settings).items() if key != "patience"},
    )
    together.run()
    return together.results()


def network(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.read_tensors(folder / "network.safetensors")[0]


def same_network(machines: Machines) -> bool:
    found, wanted = network(machines.run), network(machines.folder / "alone")
    return found.keys() == wanted.keys() and all(torch.equal(found[k], wanted[k]) for k in found)


def test_three_rounds_equal_the_run_in_one_process_to_the_bit(tmp_path, record_testsuite_property):
    """With no network but loopback where the system allows that, and with what there is elsewhere.

    It is the same federation either way: three rounds of it, and all that comes of them.
    """
    machines, seen, way = Machines(tmp_path, rounds=3), tmp_path / "seen", way_inside()
    command = [sys.executable, FEDERATE, machines.config, machines.federation]
    out = run_by(way if isinstance(way, tuple) else (), *command, seen=seen)
    if isinstance(way, tuple):
        assert_alone(seen)
    assert "run folder:" in out
    print(out.splitlines()[-1])
    record_testsuite_property("three rounds with loopback alone", out.splitlines()[-1])
    assert_equal_to_one_process(machines)


def assert_equal_to_one_process(machines: Machines) -> None:
    reference = alone(machines)
    assert same_network(machines)
    rows = fgn.load(machines.run).table.rows
    expected = [r for r in reference.table.rows if r["split"] == "batch"]
    assert len(rows) == 9
    for row, wanted in zip(rows, expected, strict=True):
        assert (row["client"], row["weight"]) == (wanted["client"], wanted["weight"])
        assert (row["loss_ratio"], row["grad_norm"]) == (
            wanted["loss_ratio"],
            wanted["grad_norm"],
        )
        assert "loss" not in row
    for name in NAMES:
        (result,) = machines.homes[name].glob("state/*/result")
        own = fgn.load(result)
        assert list(own.heads) == [name]
        assert torch.equal(own.heads[name].weight, reference.heads[name].weight)
        assert oct((machines.homes[name] / "client.key").stat().st_mode)[-3:] == "600"


def missed(machines: Machines, name: str) -> bool:
    """Whether the run's table says that this client was left out of a round."""
    rows = read_history(machines.run / "metrics.csv").rows
    return any(row["client"] == name and not row["active"] for row in rows)


def test_a_killed_client_comes_back_with_its_head_and_the_run_goes_on(tmp_path):
    machines = Machines(tmp_path, rounds=14, deadline=15.0, minimum=2)
    with joined(list(machines.homes.values())) as clients, machines.serve() as server:
        until(lambda: machines.rounds() >= 2)
        child = children(clients[0])[0]
        clients[0].send_signal(signal.SIGSTOP)  # nobody starts it again before a round went by
        kill(child)
        until(lambda: missed(machines, NAMES[0]))
        clients[0].send_signal(signal.SIGCONT)
        out = finished(server, 0)
    assert "14/14" in out
    rows = [r for r in fgn.load(machines.run).table.rows if r["client"] == NAMES[0]]
    assert any(not row["active"] for row in rows)
    assert rows[-1]["active"]
    state = checkpoint.load(machines.run / "checkpoint.safetensors")["trainer"]
    taken = sum(row["active"] for row in rows)
    assert state["states"][NAMES[0]] == taken < 14
    (slots,) = (p for p in (machines.homes[NAMES[0]] / "state").iterdir() if p.is_dir())
    assert taken in {checkpoint.load(path)["rounds"] for path in slots.glob("state-*")}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refused_untouched(machines: Machines) -> None:
    """A checkpoint with one bit turned is refused, and nothing is changed by that."""
    path = machines.run / "checkpoint.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    before = contents(machines.run)
    with machines.serve("--resume") as server:
        assert "checkpoint" in finished(server, 2)
    assert contents(machines.run) == before
    path.write_bytes(whole)


def test_killed_servers_and_clients_are_resumed_to_the_same_networks_and_heads(tmp_path):
    """With heads that are shared, a best round that is kept, and networks of the clients' own."""
    terms = {"minimum": 3, "tasks": TASKS, "training": SHARING, "evaluate": 1}
    machines = Machines(tmp_path, rounds=9, **terms)
    with joined(list(machines.homes.values())) as clients:
        with machines.serve() as server:
            until(lambda: machines.rounds() >= 2)
            kill(children(server)[0])
            out = finished(server, 1)
            assert "continue with --resume" in " ".join(out.split())
        refused_untouched(machines)
        with machines.serve("--resume") as server:
            until(lambda: machines.rounds() >= 5)
            link = children(server)[0]
            kill(children(clients[0])[0])
            kill(server.pid)
            server.wait()
            until(lambda: not Path(f"/proc/{link}/exe").exists(), 30)
        with machines.serve("--resume") as server:
            finished(server, 0)
    alone(machines)
    assert same_network(machines)
    assert_kept(machines, undisturbed(machines))


def assert_kept(machines: Machines, expected: dict[str, fgn.Run]) -> None:
    for name, wanted in expected.items():
        (result,) = machines.homes[name].glob("state/*/result")
        own = fgn.load(result)
        for kind in ("heads", "networks"):
            one, other = (toys.parameters(getattr(run, kind)[name]) for run in (own, wanted))
            assert torch.equal(one, other)
        assert own.manifest.get("kept") == wanted.manifest.get("kept")
        assert own.manifest["personal"] == wanted.manifest["personal"]
        assert own.history.equals(wanted.history)
        assert ("kept" in own.manifest) == (name != "value")  # it has no validation rows


def test_a_client_below_our_messages_ends_nothing_and_is_shut_out(
    tmp_path, record_testsuite_property
):
    """Nor does it fill the server's memory: what it sends is held once, and no more than is due."""
    terms = {"deadline": 30.0, "minimum": 2, "refusals": 5, "misses": 0}
    machines = Machines(tmp_path, rounds=8, widths=(1400, 1400), **terms)
    vector = 4 * (3 * 1400 + 1400 + 1400 * 1400 + 1400) / 2**20  # MB of the shared network
    bad, *good = machines.homes.values()
    address, tests = f"localhost:{machines.port}", str(ATTACKER.parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, str(ATTACKER), address, str(bad)]
    with ExitStack() as stack:
        attacker = stack.enter_context(subprocess.Popen(command, env=environment))
        stack.callback(attacker.kill)
        stack.enter_context(joined(good))
        server = stack.enter_context(machines.serve())
        until(lambda: machines.rounds() >= 2)
        honest = most_memory(server.pid)
        until(lambda: machines.rounds() >= 7)
        grown = most_memory(server.pid) - honest
        finished(server, 0, 400)
        assert attacker.poll() is None
    words = f"the server held {honest:.0f} MB at most, and then {grown:.0f} MB more"
    print(f"{words}; the network has {vector:.1f} MB")
    record_testsuite_property("memory of serve under the largest answers", words)
    assert grown < 12 * vector
    state = checkpoint.load(machines.run / "checkpoint.safetensors")["trainer"]
    assert state["states"] == {"class": 0, "value": 8, "side": 8}
    assert state["refused"]["class"] == state["attendance"]["refusals"]["class"] == 5
    said = (machines.run / "log.txt").read_text()
    assert said.count("client 'class' is shut out of this run") == 1
    assert [row["client"] for row in read_history(machines.run / "metrics.csv").rows][-2:] == list(
        NAMES[1:]
    )


def test_strangers_are_refused(tmp_path):
    """An unregistered key, a wrong authority, a wrong host name, an operator without the secret."""
    machines = Machines(tmp_path, rounds=3, hosts=("localhost",))
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other = Machines(other_folder, rounds=3)
    ours = machines.homes["class"]
    theirs, elsewhere = other.homes["class"], (ours / "client.toml").read_bytes()
    changes = {
        "key": ("client.key", (theirs / "client.key").read_bytes()),
        "authority": ("ca.pem", (theirs / "ca.pem").read_bytes()),
        "host": ("client.toml", elsewhere.replace(b"localhost", b"127.0.0.1")),
    }
    with ExitStack() as stack:
        server = stack.enter_context(machines.serve())
        until(lambda: _listens(machines.port))
        clients, said = {}, {}
        for name, (file, content) in changes.items():
            home = ours.with_name(name)
            shutil.copytree(ours, home)
            (home / file).write_bytes(content)
            clients[name] = stack.enter_context(
                machines.started("join", home / "client.toml", "--once")
            )
        waits = clients.pop("key")  # it may be registered later
        assert waits.stdout is not None
        said["key"] = next(line for line in waits.stdout if "does not let this client in" in line)
        for name, client in clients.items():
            said[name] = " ".join(client.communicate(timeout=120)[0].split())
            assert client.returncode != 0
        assert server.poll() is None
        assert _status(machines, "/v1/control/list-nodes") == 403
    assert "WARNING" in said["key"]
    assert "not by this federation's authority" in said["authority"]
    assert "not for this host" in said["host"]
    assert not (machines.run / "metrics.csv").read_text().splitlines()[1:]


def test_plain_text_is_refused(tmp_path):
    machines = Machines(tmp_path, rounds=3)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", machines.port)) as plain:
        thread = threading.Thread(target=_babble, args=(plain, heard), daemon=True)
        thread.start()
        with machines.started("join", machines.homes["class"] / "client.toml", "--once") as client:
            out = finished(client, 2)
    assert "does not speak TLS" in " ".join(out.split())
    assert heard
    assert b"class" not in heard[0]


def _babble(plain: socket.socket, heard: list[bytes]) -> None:
    peer, _ = plain.accept()
    heard.append(peer.recv(65536))
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    peer.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _status(machines: Machines, path: str) -> int:
    import httpx

    url = f"https://localhost:{machines.port}{path}"
    context = ssl.create_default_context(cafile=str(machines.federation / "ca.pem"))
    with httpx.Client(verify=context, timeout=60) as client:
        return client.post(url).status_code


def test_a_killed_supervisor_leaves_no_node_that_blocks_the_next(tmp_path):
    machines = Machines(tmp_path, rounds=3)
    home = machines.homes["class"]
    with machines.started("join", home / "client.toml") as supervisor:
        until(lambda: (home / "state" / ".lock").exists())
        (node,) = children(supervisor)
        kill(supervisor.pid)
        until(lambda: not Path(f"/proc/{node}/exe").exists(), 20)
    with machines.started("join", home / "client.toml") as again:
        until(lambda: "joined" in _events(home)[1:])
        assert again.poll() is None


def _events(home: Path) -> list[str]:
    return [line["event"] for line in Audit(home / "state").lines()]
