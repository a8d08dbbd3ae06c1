"""A client's answers: the same ``local_round`` as in one process, its state in files of its own."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._engines.loop import LoopEngine
from fedgradnorm._federation.federation import make_head, tuned_parameters, tuning
from fedgradnorm._federation.head_averaging import fill_head, flat_head
from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.group_heads import ALL
from fedgradnorm._flower.keeping import Keeping, Present
from fedgradnorm._flower.ledger import Ledger, at_home
from fedgradnorm._flower.slots import Slots, StateLost
from fedgradnorm._flower.wire.messages import Answer, Order, Refused
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.private.private_client import question
from fedgradnorm._round.private.private_plan import check_private, expected_rounds
from fedgradnorm._runs.about import FORMAT
from fedgradnorm._runs.history import History
from fedgradnorm._runs.layout import LEDGER, RESULT
from fedgradnorm._runs.run import Run, TrainedClient, blueprints
from fedgradnorm._training.stopping import SPLIT, log_personal
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._flat import FlatNetwork
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
        if client.privacy is not None:
            check_private([client], settings, told=agreement.scalars)
            client = at_home(client, expected_rounds(settings, agreement.rounds), folder)
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
        self.ledger: Ledger | None = None
        if client.privacy is not None:
            how, batch = settings.local(), settings.batch_size
            self.ledger = Ledger(folder / LEDGER, client, how, batch)
        self.like = self.engine.network.vector.detach().cpu().clone()
        self._initial = self.engine.state_dict()[client.name]
        self.group = {"own": "", "task": client.task_name, "all": ALL}[settings.heads]
        self.like_head = flat_head(head) if self.group else None
        self.tuned = tuned_parameters(self.network, settings)
        self.present = Present(client, self.engine)
        self._keeping: dict[str, Keeping] = {}  # by run
        every = max(1, round(settings.rounds_per_epoch([client.size])))
        self.every = every if settings.eval_every is None else settings.eval_every
        if settings.keep == "best" and client.validation is None:
            log.warning("keep = 'best': no validation rows, so the last state is kept")

    def respond(self, content: RecordDict) -> RecordDict:
        """The answer to a message, both as Flower's records."""
        from fedgradnorm._flower.wire.messages import decode_order, encode_answer

        order = decode_order(content, self.like, self.group, self.like_head)
        return encode_answer(self.answer(order))

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
        keeping = self._kept_of(order.run)
        self.engine.load_state_dict({self.client.name: state})
        if order.head is not None:
            fill_head(self.engine.heads()[self.client.name], order.head.to(self.engine.device))
        self.present.shared = order.shared.to(self.engine.device)
        with numerics(self.agreement.settings.precision, self.engine.device):
            if order.kind == "finish":
                return self._finish(order, keeping)
            if keeping is not None and keeping.is_due(order.round, self.every):
                keeping.judge(order.round)
            return self._train(order, slots)

    def _kept_of(self, run: str) -> Keeping | None:
        """What is kept of this run so far; None where the last state will do."""
        settings = self.agreement.settings
        if settings.keep == "last" or self.client.validation is None:
            return None
        if run not in self._keeping:
            self._keeping = {run: Keeping(self.folder / run, self.present, settings.patience)}
        return self._keeping[run]

    def _train(self, order: Order, slots: Slots) -> Answer:
        name = self.client.name
        spent = "" if self.ledger is None else self._charge(order, self.ledger)
        reports = self.engine.run_clients(self.present.shared, order.round, [name])
        if reports.failed:
            raise Refused("its loss or gradient is not finite; its state stays as it was")
        slots.save(self.engine.state_dict()[name], keep=order.state_round)
        every = {
            "size": float(self.client.size),
            "loss": float(reports.loss[0]),
            "loss_ratio": float(reports.loss_ratio[0]),
            "gauge_norm": float(reports.gauge_norm[0]),
        }
        log.info("round %d: loss %.6g%s", order.round + 1, every["loss"], spent)
        return Answer(
            order.run,
            order.round,
            order.state_round + 1,
            reports.gradients()[0].cpu(),
            {key: every[key] for key in self.agreement.scalars},
            order.group,
            None if order.head is None else flat_head(self.engine.heads()[name]).cpu(),
        )

    def _charge(self, order: Order, ledger: Ledger) -> str:
        """Let the budget pay for the answer, before there is one; what is spent, for the log."""
        private = self.engine.private[self.client.name]
        private.budget = ledger.budget(order.run)
        state = self.engine.states[self.client.name]
        asked = question(state, self.present.shared, order.round)
        ledger.charge(order.run, order.round, asked)
        return f", epsilon {ledger.epsilon(order.run):.3g} of {private.budget.epsilon:g}"

    def _finish(self, order: Order, keeping: Keeping | None) -> Answer:
        """Keep the best or the finished network with this client's head, tuned if it is to be.

        What is kept can be loaded like any run. None of it leaves this machine.
        """
        if keeping is not None:
            keeping.judge(order.round)
            keeping.best.restore()
            self._keeping = {}  # the best state is not held twice; the file has it still
        how = tuning(self.agreement.settings, self.tuned, order.round)
        personal = {} if how is None else self.engine.personalize(self.present.shared, how)
        log_personal(personal)
        more: dict[str, Any] = {"personal": personal} if personal else {}
        run = self._run(order, keeping, more | (keeping.about() if keeping else {}))
        place = run.save(self.folder / order.run / RESULT)
        log.info("finished: network and head in %s", place)
        return Answer(order.run, order.round, order.state_round)

    def _network(self, vector: Tensor) -> nn.Module:
        """The network with these numbers, as a module of its own."""
        flat = FlatNetwork(self.network)
        flat.vector.copy_(vector)
        return flat.module

    def _run(self, order: Order, keeping: Keeping | None, more: dict[str, Any]) -> Run:
        name, client = self.client.name, self.client
        state, head = self.engine.states[name], copy.deepcopy(self.engine.heads()[name]).cpu()
        trained = TrainedClient(
            head,
            client.task.kind,
            {key: value.cpu() for key, value in state.buffers.items()},
            None if state.own is None else self._network(state.own),
            scaling=client.scaling,
            labels=client.labels,
            columns=client.columns,
        )
        about = {
            "format": FORMAT,
            "settings": {"seed": self.agreement.settings.seed},
            "weighting": {"name": "federation"},
            "clients": {name: self._info()},
            "blueprints": blueprints(self.network, {name: head}),
            **more,
        }
        shared = self._network(self.present.shared)
        return Run({name: trained}, about, self._history(order, keeping), shared)

    def _history(self, order: Order, keeping: Keeping | None) -> History:
        """The evaluations on the way, where there were any, and that of what is kept.

        Of a private client also what it had spent after each of its rounds.
        """
        round_number, ledger = order.round, self.ledger
        history = History(sorted(self.client.task.metrics), private=ledger is not None)
        history.append([] if ledger is None else ledger.rows(order.run))
        found = [(k, SPLIT, v) for k, v in (keeping.values if keeping else {}).items()]
        rows = [row for row in found if row[0] < round_number]
        for split in SPLITS:
            values = self.engine.evaluate(self.present.shared, split).get(self.client.name)
            rows += [(round_number, split, values)] if values else []
        for number, split, values in rows:
            about = {"round": number, "epoch": 0.0, "client": self.client.name}
            history.append([{**about, "split": split, **values}])
        return history

    def _info(self) -> dict[str, Any]:
        """What a loaded run must know about this client to predict."""
        client, weights = self.client, self.client.task.class_weights()
        return {
            "kind": client.task.kind,
            **({"class_weights": weights} if weights else {}),
            "labels": client.labels,
            "columns": client.columns,
            "inputs": list(client.train[0].shape[1:]),
        }
