"""A client's answers: the same ``local_round`` as in one process, its state in files of its own."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._engines import Engine, Problem
from fedgradnorm._engines.tuning import log_personal
from fedgradnorm._errors import ConfigError
from fedgradnorm._federation.federation import tuning
from fedgradnorm._federation.heads import (
    HeadsOnDemand,
    log_starts,
    own_parameters,
    probe_of,
    shared_columns,
)
from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.federation_file import several_tasks
from fedgradnorm._flower.group_heads import ALL
from fedgradnorm._flower.ledger import ClientLedger, at_home
from fedgradnorm._flower.own_history import OwnHistory
from fedgradnorm._flower.slots import Slots, StateLost
from fedgradnorm._flower.wire.messages import (
    Answer,
    Order,
    Refused,
    decode_order,
    encode_answer,
)
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.private.private_gradients import question
from fedgradnorm._round.private.private_plan import check_private, expected_rounds, plan_of
from fedgradnorm._round.reports import SENT
from fedgradnorm._runs.blueprint import blueprints
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import SPENT, History
from fedgradnorm._runs.layout import RESULT
from fedgradnorm._runs.manifest import FORMAT, client_info
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.trained import TrainedClient
from fedgradnorm._state.table import FIRST_LOSS, OWN, ROUNDS
from fedgradnorm._training.best import Best
from fedgradnorm._training.callbacks import VALIDATION
from fedgradnorm.models._dividing import divided, log_division
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._norm_layer import find_norm_layer

log = logging.getLogger("fedgradnorm")


class ClientSession:
    """One client, its data and its state folder; answers the server's orders."""

    def __init__(
        self,
        network: nn.Module,
        client: Client,
        agreement: Agreement,
        folder: Path,
    ) -> None:
        settings = agreement.settings
        if len(client.rows) > 1:
            raise ConfigError(several_tasks(client.name, len(client.rows)))
        if client.privacy is not None:
            check_private([client], settings, losses=agreement.scalars)
            client = at_home(client, expected_rounds(settings, agreement.rounds))
        self.client, self.name, self.privacy = client, client.name, client.privacy
        self.agreement, self.folder = agreement, folder
        self.network = copy.deepcopy(divided(network, settings.shared, settings.frozen))
        heads = HeadsOnDemand(self.network, [client], settings)
        heads.make_all()
        norm_layer = find_norm_layer(
            self.network, probe_of(self.network, client), settings.norm_layer
        )
        log_division(self.network, norm_layer)
        log_starts([client], settings)
        gpu = settings.device != "cpu" and torch.cuda.is_available()
        device = torch.device("cuda" if gpu else "cpu")
        how, batch = settings.local(), settings.batch_size
        given = (self.network, [client], heads, norm_layer, how, device, batch, settings.seed)
        self.engine = Engine(Problem(*given))
        self.ledger: ClientLedger | None = None
        if client.privacy is not None:
            plan = plan_of(client, how, batch)
            self.ledger = ClientLedger(folder, client.name, client.privacy, lambda: plan)
        self.like = self.engine.network.vector.detach().cpu().clone()
        self.shared = self.engine.network.vector.detach().clone()  # as the server last sent it
        self.initial = {"rounds": 0, "row": self.engine.client_state(client.name), **UNJUDGED}
        self.group = {"own": "", "task": client.shared_task, "all": ALL}[settings.heads]
        self.like_head: Tensor | None = None  # what of its head leaves, where that is shared
        if self.group:
            own = own_parameters(heads[client.name], settings.head_own, client.name)
            self._common = shared_columns(heads[client.name], own)
            self.like_head = self._head()
        tuning(self.network, settings)  # names layers that the network has not
        self.keeps = settings.keeps_best and client.validation is not None
        self.reported: dict[str, float] = {}  # of its last round
        self.result: Path | None = None  # where it was saved, once the run is over
        self.over = False
        every = max(1, round(settings.rounds_per_epoch([client.drawn])))
        self.every = every if settings.eval_every is None else settings.eval_every
        if settings.keeps_best and not self.keeps:
            log.warning("keep_best: no validation examples, so the last state is kept")

    def respond(self, content: bytes) -> bytes:
        order = decode_order(content, self.like, self.group, self.like_head)
        answer, own = self.answer(order), OwnHistory(self.folder / order.run)
        if order.kind == "train":
            row = batch_row(order.round + 1, self.name, self.reported)
            own.add(order.state_round + 1, [row])
        return encode_answer(answer)

    def answer(self, order: Order) -> Answer:
        """Carry out an order that fits what was agreed and what this client remembers."""
        if order.digest != self.agreement.digest:
            raise Refused("the server runs other settings than this client agreed to")
        if order.round >= self.agreement.rounds + (order.kind == "finish"):
            raise Refused(f"round {order.round} is not one of the {self.agreement.rounds} agreed")
        slots = Slots(self.folder / order.run)
        try:
            state = slots.at(order.state_round, self.initial)
        except StateLost as error:
            raise Refused(str(error)) from error
        best = self._best(state) if self.keeps else None
        self.engine.load_client(self.name, state["row"])
        if order.head is not None:
            heads = self.engine.head_rows([self.name])
            heads[:, self._common] = order.head.to(heads)
            self.engine.set_head_rows([self.name], heads)
        self.shared = order.shared.to(self.engine.device)
        own = OwnHistory(self.folder / order.run)
        first = not own.begun
        own.settle(order.state_round, order.weight)
        with numerics(self.agreement.settings.precision, self.engine.device):
            if order.kind == "finish":
                with self._failing_in_secret("its result"):
                    self._finish(order, best)
                self.over = True
                return Answer(order.run, order.round, order.state_round)
            if first:
                own.add(0, self._evaluations(order.round, kept=best is not None))
            judged = {key: state[key] for key in UNJUDGED}
            if best is not None and self._is_due(state["judged"], order.round):
                values = self.engine.evaluate(self.shared, VALIDATION)
                best.judge(order.round, values)
                own.add(order.state_round, _evaluated(order.round, VALIDATION, values))
                judged = {"judged": order.round, "best": best.state_dict()}
            return self._train(order, slots, judged)

    def _head(self) -> Tensor:
        """What others share of its head."""
        return self.engine.head_rows([self.name])[0].cpu()[self._common]

    @contextmanager
    def _failing_in_secret(self, what: str) -> Iterator[None]:
        """Where others must not learn of it, only the client's own log says what failed."""
        try:
            yield
        except Exception as error:
            if self.ledger is None and self.agreement.private is None:
                raise
            log.error("%s failed: %s", what, error, exc_info=True)

    def _best(self, state: Mapping[str, Any]) -> Best:
        """The best round so far, judged by this client's own validation examples.

        The server sees no validation loss, so each client keeps a round of its own: a copy of the
        network that it was sent, and of its row.
        """

        def take() -> dict[str, Any]:
            return {"shared": self.shared.clone(), "row": self.engine.client_state(self.name)}

        def give(kept: Mapping[str, Any]) -> None:
            self.shared = kept["shared"].to(self.engine.device)
            self.engine.load_client(self.name, kept["row"])

        best = Best(take, give, self.agreement.settings, lenient=True)
        if state["best"] is not None:
            best.load_state_dict(state["best"])
        return best

    def _is_due(self, judged: int, round_number: int) -> bool:
        """Whether to evaluate: at the first round that the client sees, then every interval."""
        return judged < 0 or (self.every > 0 and round_number // self.every > judged // self.every)

    def _train(self, order: Order, slots: Slots, judged: Mapping[str, Any]) -> Answer:
        asked, spent = "", ""
        if self.ledger is not None:  # the same question has the same answer, and costs once
            row = self.engine.client_state(self.name)
            asked = question(row[OWN], int(row[ROUNDS]), self.shared, order.round)
            if (known := self._stored_answer(order, slots, asked)) is not None:
                return known
            # Let the budget pay for the answer, before there is one; what is spent, for the log.
            self.engine.set_noise(self.name, self.ledger.noise(order.run))
            first = bool(torch.isnan(self.engine.client_state(self.name)[FIRST_LOSS]).any())
            epsilon = self.ledger.charge(order.run, order.round, first)
            spent = f", epsilon {epsilon:.3g} of {self.ledger.terms.epsilon:g}"
        reports = self.engine.run_clients(self.shared, order.round, [self.name])
        if reports.failed:
            raise Refused("its loss or gradient is not finite; its state stays as it was")
        row = self.engine.client_state(self.name)
        state = {"rounds": order.state_round + 1, "row": row, **judged}
        if self.ledger is None:
            slots.save(state, keep=order.state_round)
        self.reported = {key: float(getattr(reports, key)[0]) for key in SCALARS}
        log.info("round %d: loss %.6g%s", order.round + 1, self.reported["loss"], spent)
        content: dict[str, Any] = {
            "update": reports.gradients()[0].cpu().clone(),  # the next round writes over it
            "scalars": {key: self.reported[key] for key in self.agreement.scalars},
        }
        if order.head is not None:
            content["head"] = self._head()
        if self.ledger is not None:
            answered = {"question": asked, "reported": dict(self.reported), **content}
            slots.save({**state, "answered": answered}, keep=order.state_round)
        return Answer(order.run, order.round, order.state_round + 1, **content)

    def _stored_answer(self, order: Order, slots: Slots, asked: str) -> Answer | None:
        """The answer to the same question, if it was the last one from this state."""
        known = slots.held().get(order.state_round + 1, {}).get("answered", {})
        if known.get("question") != asked:
            return None
        self.reported = dict(known["reported"])
        told = {key: known[key] for key in ("update", "scalars", "head") if key in known}
        return Answer(order.run, order.round, order.state_round + 1, **told)

    def _finish(self, order: Order, best: Best | None) -> None:
        """Keep the best or the finished network with this client's head, tuned if it is to be.

        What is kept can be loaded like any run. None of it leaves this machine.
        """
        more: dict[str, Any] = {}
        if best is not None:
            best.judge(order.round, self.engine.evaluate(self.shared, VALIDATION))
            best.restore()
            if math.isfinite(best.value):
                more = {"stopped_early": False, "kept": best.for_manifest()}
        how = tuning(self.network, self.agreement.settings, order.round)
        personal = {} if how is None else self.engine.personalize(self.shared, how)
        log_personal(personal)
        run = self._run(order, more | ({"personal": personal} if personal else {}))
        place = run.save(self.folder / order.run / RESULT)
        self.result = Path(place)
        log.info("finished: network and head in %s", place)

    def _network(self, vector: Tensor) -> nn.Module:
        flat = FlatNetwork(self.network)
        flat.vector.copy_(vector)
        return flat.module

    def _run(self, order: Order, more: dict[str, Any]) -> Run:
        learned = self.engine.exported(self.name)
        own = None if learned.network is None else self._network(learned.network)
        trained = TrainedClient.from_client(self.client, learned, own)
        manifest = {
            "format": FORMAT,
            "settings": {
                key: getattr(self.agreement.settings, key)
                for key in ("seed", "shared", "frozen", "head_init")
            },
            "weighting": {"name": "federation"},
            "clients": {self.name: client_info(self.client)},
            "blueprints": blueprints(self.network, {self.name: trained.head}, [self.client]),
            **more,
        }
        history = self._history(order.run, order.round)
        return Run({self.name: trained}, manifest, history, self._network(self.shared))

    def _history(self, run: str, round_number: int) -> History:
        """What this client measured in its rounds, its evaluations, and that of what is kept.

        For a private client also what it had spent after each of its rounds.
        """
        metrics = sorted(self.client.task.metrics)
        history = History(metrics, [] if self.ledger is None else [SPENT])
        spent = [] if self.ledger is None else self.ledger.rows(run, self.name)
        own = OwnHistory(self.folder / run).rows()
        batches = {row["round"]: row for row in own if row["split"] == "batch"}
        for row in spent:
            batches[row["round"]] = {**batches.get(row["round"], {}), **row}
        history.append([r for r in own if r["split"] != "batch"] + list(batches.values()))
        history.append(self._evaluations(round_number))
        return history

    def _evaluations(self, number: int, kept: bool = False) -> list[Row]:
        """What the network that was sent does on each split; ``kept`` has the validation split."""
        splits = [one for one in SPLITS if not (kept and one == VALIDATION)]
        rows = list[Row]()
        for split in splits:
            with self._failing_in_secret(f"the evaluation of its {split} examples"):
                rows += _evaluated(number, split, self.engine.evaluate(self.shared, split))
        return rows


def batch_row(number: int, name: str, values: Mapping[str, float]) -> Row:
    about: Row = {"round": number, "epoch": float(number), "client": name, "split": "batch"}
    return {**about, "active": 1, **{key: values[key] for key in SENT}}


def _evaluated(number: int, split: str, table: Mapping[str, Mapping[str, float]]) -> list[Row]:
    about = {"round": number, "epoch": float(number), "split": split}
    return [{**about, "client": name, **values} for name, values in table.items()]


UNJUDGED: dict[str, Any] = {"judged": -1, "best": None}
"""Of a client that has looked at none of its validation examples: the last round it looked, and the
best one so far."""
SCALARS = ("size", *SENT)
"""What may be asked of a client besides its update."""
