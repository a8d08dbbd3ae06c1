"""A client's answers: the same ``local_round`` as in one process, its state in files of its own."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._engines.loop import LoopEngine
from fedgradnorm._federation.federation import make_head
from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.slots import Slots, StateLost
from fedgradnorm._flower.wire.messages import Answer, Order, Refused
from fedgradnorm._round.numerics import numerics
from fedgradnorm._runs.about import FORMAT
from fedgradnorm._runs.history import History
from fedgradnorm._runs.run import Run, TrainedClient, blueprints
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._gauge import find_gauge

if TYPE_CHECKING:
    from flwr.app import RecordDict

log = logging.getLogger("fedgradnorm")


class Participant:
    """One client, its data and its state folder; answers the server's orders."""

    def __init__(
        self, network: nn.Module, client: Client, agreement: Agreement, folder: Path
    ) -> None:
        settings = agreement.settings
        self.client, self.agreement, self.folder = client, agreement, folder
        self.network = copy.deepcopy(network)
        head = make_head(self.network, client, settings.seed, settings.head_start)
        probe = as_input(torch.as_tensor(client.train[0][:2]), self.network, "cpu")
        gauge = find_gauge(self.network, probe, settings.gauge)
        log.info("gauge: %s", ", ".join(gauge))
        gpu = settings.device != "cpu" and torch.cuda.is_available()
        self.engine = LoopEngine(
            self.network,
            [client],
            {client.name: head},
            gauge=gauge,
            how=settings.local(),
            batch_size=settings.batch_size,
            seed=settings.seed,
            device=torch.device("cuda" if gpu else "cpu"),
            bf16=settings.precision == "bf16",
        )
        self.like = self.engine.network.vector.detach().cpu().clone()
        self._initial = self.engine.state_dict()[client.name]

    def respond(self, content: RecordDict) -> RecordDict:
        """The answer to a message, both as Flower's records."""
        from fedgradnorm._flower.wire.messages import decode_order, encode_answer

        return encode_answer(self.answer(decode_order(content, self.like)))

    def answer(self, order: Order) -> Answer:
        """Carry out an order that fits what was agreed and what this client remembers."""
        if order.digest != self.agreement.digest:
            raise Refused("the server runs other settings than this client agreed to")
        if order.round >= self.agreement.rounds + (order.kind == "finish"):
            raise Refused(f"round {order.round} is not one of the {self.agreement.rounds} agreed")
        slots = Slots(self.folder / order.run)
        try:
            state = slots.at(order.state_round, self._initial)
        except StateLost as error:
            raise Refused(str(error)) from error
        self.engine.load_state_dict({self.client.name: state})
        with numerics(self.agreement.settings.precision, self.engine.device):
            return self._train(order, slots) if order.kind == "train" else self._finish(order)

    def _train(self, order: Order, slots: Slots) -> Answer:
        name = self.client.name
        shared = order.shared.to(self.engine.device)
        reports = self.engine.run_clients(shared, order.round, [name])
        if reports.failed:
            raise Refused("its loss or gradient is not finite; its state stays as it was")
        slots.save(self.engine.state_dict()[name], keep=order.state_round)
        every = {
            "size": float(self.client.size),
            "loss": float(reports.loss[0]),
            "loss_ratio": float(reports.loss_ratio[0]),
            "gauge_norm": float(reports.gauge_norm[0]),
        }
        log.info("round %d: loss %.6g", order.round + 1, every["loss"])
        return Answer(
            order.run,
            order.round,
            order.state_round + 1,
            reports.gradients()[0].cpu(),
            {key: every[key] for key in self.agreement.scalars},
        )

    def _finish(self, order: Order) -> Answer:
        """Keep the finished network with this client's head, as a run that can be loaded."""
        run = self._run(order)
        place = run.save(self.folder / order.run / "result")
        log.info("finished: network and head in %s", place)
        return Answer(order.run, order.round, order.state_round)

    def _run(self, order: Order) -> Run:
        name, client = self.client.name, self.client
        self.engine.network.vector.copy_(order.shared)
        shared = copy.deepcopy(self.engine.network.module).cpu()
        state, head = self.engine.states[name], copy.deepcopy(self.engine.heads()[name]).cpu()
        trained = TrainedClient(
            head,
            client.task.kind,
            {key: value.cpu() for key, value in state.buffers.items()},
            scaling=client.scaling,
            labels=client.labels,
            columns=client.columns,
        )
        history = History(sorted(client.task.metrics))
        for split in SPLITS:
            values = self.engine.evaluate(order.shared.to(self.engine.device), split).get(name)
            if values:
                row: dict[str, Any] = {"round": order.round, "epoch": 0.0, "client": name}
                history.append([{**row, "split": split, **values}])
        about = {
            "format": FORMAT,
            "settings": {"seed": self.agreement.settings.seed},
            "weighting": {"name": "federation"},
            "clients": {name: self._info()},
            "blueprints": blueprints(self.network, {name: head}),
        }
        return Run({name: trained}, about, history, shared)

    def _info(self) -> dict[str, Any]:
        """What a loaded run must know about this client to predict."""
        client = self.client
        return {
            "kind": client.task.kind,
            "labels": client.labels,
            "columns": client.columns,
            "inputs": list(client.train[0].shape[1:]),
        }
