"""FedRep in Flower's simulation, from PyPI as ``flwr[simulation]``: its server, messages and Ray.

What a user of Flower writes is here: what a client does with a message, and a strategy whose mean
of the weights goes through Adam. It gets the best we know of: data and network stay in Ray's
workers between rounds, a client's head and its moments live in the client's state, nothing is
evaluated, every Adam is fused, and the threads are shared out as ``--client-cpus`` says: one each
(as many clients at once as there are threads) or all of them to one client at a time.
A round is timed at the server, from one mean to the next; Ray's start is not counted.

Losses agree less than pfl's (see rival_pfl.py), to a few 1e-4: here the mean weights are rounded to
float32 before their difference is taken. In float64 they agree like the plain loop's.

Ray needs processes of its own, so this is a program: speed.py starts it and reads its last line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from work import LR, Work, make_batches, make_clients, make_heads, make_network

import fedgradnorm as fgn
from fedgradnorm._round.batches import Batches

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def measure(work: Work, rounds: int, threads: int, client_cpus: int) -> dict[str, Any]:
    """Seconds of every round and every client's losses, from a process of its own."""
    words = [sys.executable, __file__, json.dumps(asdict(work)), "--rounds", str(rounds)]
    words += ["--threads", str(threads), "--client-cpus", str(client_cpus)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **QUIET})
    if done.returncode:
        raise RuntimeError(f"Flower's simulation failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@dataclass
class Party:
    """What a worker keeps between messages: everybody's data, and one network to work on."""

    work: Work
    clients: list[fgn.Client]
    data: list[tuple[Tensor, Tensor]]
    network: nn.Module
    batches: Batches


@lru_cache(maxsize=1)
def party(text: str, threads: int) -> Party:
    """The party that ``text`` describes, once per worker."""
    torch.set_num_threads(threads)
    work = Work(**json.loads(text))
    clients = make_clients(work)
    data = [(torch.as_tensor(c.train[0]), torch.as_tensor(c.train[1])) for c in clients]
    return Party(work, clients, data, make_network(work), make_batches(work, clients))


def train(message: Any, context: Any) -> Any:
    """A client's round: head steps on the frozen network, then steps of the network."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    config = message.content["config"]
    here = party(str(config["work"]), int(config["threads"]))
    number = int(context.node_config["partition-id"])
    client, (x, y) = here.clients[number], here.data[number]
    rows = torch.as_tensor(here.batches.of_round(config["server-round"] - 1)[client.name])
    here.network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    head = make_heads(here.network, [client])[client.name]
    optimizer = torch.optim.Adam(head.parameters(), lr=LR, fused=True)
    remember(context.state, head, optimizer)
    for step in rows[: here.work.head_steps]:
        with torch.no_grad():
            features = here.network(x[step])
        optimizer.zero_grad()
        client.task.loss(head(features), y[step]).backward()
        optimizer.step()
    keep(context.state, head, optimizer)
    loss = descend(here, client, head.requires_grad_(False), x, y, rows[: here.work.shared_steps])
    metrics = {"loss": loss, "client": number, "num-examples": len(x)}
    answer = {
        "arrays": ArrayRecord(here.network.state_dict()),
        "metrics": MetricRecord(metrics),
    }
    return Message(content=RecordDict(answer), reply_to=message)


def descend(
    here: Party, client: fgn.Client, head: nn.Module, x: Tensor, y: Tensor, rows: Tensor
) -> float:
    """Local SGD of the network; the mean loss over its steps."""
    optimizer = torch.optim.SGD(here.network.parameters(), lr=LR)
    total = torch.zeros(())
    for step in rows:
        optimizer.zero_grad()
        loss = client.task.loss(head(here.network(x[step])), y[step])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(total) / len(rows)


def remember(state: Any, head: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The head and its moments as this client left them, if it was here before."""
    if "head" not in state:
        return
    head.load_state_dict(state["head"].to_torch_state_dict())
    kept = state["moments"].to_torch_state_dict()
    for number, parameter in enumerate(head.parameters()):
        optimizer.state[parameter] = {
            key.split(".")[1]: value for key, value in kept.items() if key.startswith(f"{number}.")
        }


def keep(state: Any, head: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Leave the head and its moments in the client's state."""
    from flwr.app import ArrayRecord

    moments = {
        f"{number}.{key}": value
        for number, parameter in enumerate(head.parameters())
        for key, value in optimizer.state[parameter].items()
    }
    state["head"], state["moments"] = ArrayRecord(head.state_dict()), ArrayRecord(moments)


def simulate(work: Work, rounds: int, threads: int, client_cpus: int) -> dict[str, Any]:
    """Run the simulation in this process."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    network, found = make_network(work), {"ends": [], "losses": []}
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, fused=True)
    scale = 1 / (LR * work.shared_steps)  # a difference of weights, as a mean gradient

    class FedRep(FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            answers = list(replies)
            mean, metrics = super().aggregate_train(server_round, answers)
            if mean is None or any(answer.has_error() for answer in answers):
                raise RuntimeError(f"round {server_round}: {[a.error for a in answers]}")
            weights = mean.to_torch_state_dict()
            for name, parameter in network.named_parameters():
                parameter.grad = (parameter.detach() - weights[name]) * scale
            optimizer.step()
            reports = [answer.content["metrics"] for answer in answers]
            found["losses"].append({f"client-{r['client']}": r["loss"] for r in reports})
            found["ends"].append(time.perf_counter())
            return ArrayRecord(network.state_dict()), metrics

    server, client = ServerApp(), ClientApp()
    client.train()(train)
    config = {"work": json.dumps(asdict(work)), "threads": client_cpus}

    @server.main()
    def main(grid: Any, _context: Any) -> None:
        everybody = {"min_train_nodes": work.clients, "min_available_nodes": work.clients}
        strategy = FedRep(fraction_evaluate=0.0, **everybody)
        first = ArrayRecord(network.state_dict())
        strategy.start(grid, first, num_rounds=rounds, train_config=ConfigRecord(config))

    quiet = {"num_cpus": threads, "log_to_driver": False, "logging_level": "error"}
    resources = {"num_cpus": client_cpus, "num_gpus": 0.0}
    backend = {"init_args": quiet, "client_resources": resources}
    run_simulation(server, client, num_supernodes=work.clients, backend_config=backend)
    ends = found["ends"]
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    return {"seconds": seconds, "losses": found["losses"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", help="a Work, as JSON")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--client-cpus", type=int, default=1)
    given = parser.parse_args()
    os.environ.update(QUIET)
    work = Work(**json.loads(given.work))
    print(json.dumps(simulate(work, given.rounds, given.threads, given.client_cpus)))


if __name__ == "__main__":
    # Under its own name, workers import this module, and what they cache outlives a message.
    from rival_flower import main as run

    run()
