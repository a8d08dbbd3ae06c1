"""A client's answers: the same ``local_round`` as in one process, its state in files of its own."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
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
    flat_head,
    log_starts,
    own_parameters,
    probe_of,
    shared_columns,
)
from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.best_state import BestState, Present
from fedgradnorm._flower.group_heads import ALL
from fedgradnorm._flower.ledger import ClientLedger, at_home
from fedgradnorm._flower.own_history import OwnHistory
from fedgradnorm._flower.slots import Slots, StateLost
from fedgradnorm._flower.wire.messages import (
    PRESENT,
    Answer,
    Order,
    Refused,
    decode_order,
    encode_answer,
)
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.participation import Presence
from fedgradnorm._round.private.private_gradients import question
from fedgradnorm._round.private.private_plan import check_private, expected_rounds, plan_of
from fedgradnorm._round.reports import SENT
from fedgradnorm._runs.blueprint import blueprints
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import SPENT, History
from fedgradnorm._runs.layout import RESULT
from fedgradnorm._runs.manifest import FORMAT, of_task
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.trained import TrainedClient
from fedgradnorm._state.table import FIRST_LOSS, OWN, ROUNDS
from fedgradnorm._training.callbacks import VALIDATION
from fedgradnorm.models._dividing import divided, log_division
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import row_form
from fedgradnorm.models._norm_layer import find_norm_layer

log = logging.getLogger("fedgradnorm")


class ClientSession:
    """One client, its data and its state folder; answers the server's orders."""

    def __init__(
        self,
        network: nn.Module,
        client: Client | Sequence[Client],
        agreement: Agreement,
        folder: Path,
    ) -> None:
        settings = agreement.settings
        self.rows = client.rows if isinstance(client, Client) else tuple(client)
        if self.rows[0].privacy is not None:
            check_private(self.rows, settings, losses=agreement.scalars)
            rounds = expected_rounds(settings, agreement.rounds)
            self.rows = tuple(at_home(row, rounds) for row in self.rows)
        self.agreement, self.folder = agreement, folder
        self.tasks = [r.name.removeprefix(f"{r.of}/") for r in self.rows if r.of is not None]
        self.network = copy.deepcopy(divided(network, settings.shared, settings.frozen))
        client = self.rows[0]
        if self.tasks and settings.heads != "own":
            raise ConfigError(
                f"heads = {settings.heads!r} cannot be run over the network by client "
                f"{client.owner!r}, which has several tasks; leave it at 'own'"
            )
        heads = HeadsOnDemand(self.network, self.rows, settings)
        heads.make_all()
        norm_layer = find_norm_layer(
            self.network, probe_of(self.network, client), settings.norm_layer
        )
        log_division(self.network, norm_layer)
        log_starts(self.rows, settings)
        gpu = settings.device != "cpu" and torch.cuda.is_available()
        device = torch.device("cuda" if gpu else "cpu")
        how, batch = settings.local(), settings.batch_size
        given = (self.network, self.rows, heads, norm_layer, how, device, batch, settings.seed)
        self.engine = Engine(Problem(*given))
        self.ledger: ClientLedger | None = None
        if client.privacy is not None:
            plan = plan_of(client, how, batch)
            self.ledger = ClientLedger(folder, client.name, client.privacy, lambda: plan)
        self.like = self.engine.network.vector.detach().cpu().clone()
        self.present = Present(self.rows, self.engine)
        self.initial = self.present.rows()
        self.group = {"own": "", "task": client.shared_task, "all": ALL}[settings.heads]
        self.like_head: Tensor | None = None
        if self.group:
            head = heads[client.name]
            own = own_parameters(head, settings.head_own, client.name)
            self.like_head, self._common = flat_head(head, own), shared_columns(head, own)
        tuning(self.network, settings)  # names layers that the network has not
        steps = settings.local().steps
        self.presence = Presence(self.rows, settings.batch_size, settings.seed, steps)
        self._best_states: dict[str, BestState] = {}  # by run
        self.reported: dict[str, float] = {}  # of its last round, where it has one task
        self.measured: dict[str, dict[str, float]] = {}  # of its last round, by task
        self.result: Path | None = None  # once the run is over
        every = max(1, round(settings.rounds_per_epoch([client.drawn])))
        self.every = every if settings.eval_every is None else settings.eval_every
        if settings.keeps_best and not self._judges:
            log.warning("keep_best: no validation examples, so the last state is kept")

    @property
    def _judges(self) -> bool:
        """Whether there are rows to judge by."""
        return any(row.validation is not None for row in self.rows)

    def respond(self, content: bytes) -> bytes:
        """The answer to a message."""
        order = decode_order(content, self.like, self.group, self.like_head)
        answer, own = self.answer(order), OwnHistory(self.folder / order.run)
        if order.kind == "train":
            rows = [batch_row(order.round + 1, *one) for one in self.measured.items()]
            own.add(order.state_round + 1, rows)
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
        best = self._best_of(order.run)
        self.present.load(state)
        if order.head is not None:
            heads = self.engine.head_rows([self.rows[0].name])
            heads[:, self._common] = order.head.to(heads)
            self.engine.set_head_rows([self.rows[0].name], heads)
        self.present.shared = order.shared.to(self.engine.device)
        own = OwnHistory(self.folder / order.run)
        first = not own.begun
        own.settle(order.state_round, dict(zip(self.present.names, order.weights, strict=False)))
        with numerics(self.agreement.settings.precision, self.engine.device):
            if order.kind == "finish":
                with self._failing_in_secret("its result"):
                    self._finish(order, best)
                return Answer(order.run, order.round, order.state_round)
            if first:
                own.add(0, self._evaluations(order.round, kept=best is not None))
            if best is not None and best.is_due(order.round, self.every):
                best.judge(order.round)
            return self._train(order, slots)

    @contextmanager
    def _failing_in_secret(self, what: str) -> Iterator[None]:
        """Where others must not learn of it, only the client's own log says what failed."""
        try:
            yield
        except Exception as error:
            if self.ledger is None and self.agreement.private is None:
                raise
            log.error("%s failed: %s", what, error, exc_info=True)

    def _best_of(self, run: str) -> BestState | None:
        """What is kept of this run so far; None where the last state will do."""
        settings = self.agreement.settings
        if not settings.keeps_best or not self._judges:
            return None
        if run not in self._best_states:
            self._best_states = {run: BestState(self.folder / run, self.present, settings)}
        return self._best_states[run]

    def _train(self, order: Order, slots: Slots) -> Answer:
        names = self.present.names
        asked, spent = "", ""
        if self.ledger is not None:  # the same question has the same answer, and costs once
            asked = self._question(order)
            if (known := self._stored_answer(order, slots, asked)) is not None:
                return known
            spent = self._charge(order, self.ledger)
        active = self.presence.with_labels(names, order.round)
        reports = self.engine.run_clients(self.present.shared, order.round, active)
        if reports.failed:
            raise Refused("its loss or gradient is not finite; its state stays as it was")
        state = {**self.present.rows(), "rounds": order.state_round + 1}
        if self.ledger is None:
            slots.save(state, keep=order.state_round)
        columns = {key: getattr(reports, key).tolist() for key in SCALARS}
        told = dict(zip(active, zip(*columns.values(), strict=True), strict=True))
        told = {name: told.get(name, (0.0,) * len(columns)) for name in names}
        self.reported = dict(zip(columns, told[names[0]], strict=True))
        for name in active:
            loss = told[name][1]
            log.info("round %d: %sloss %.6g%s", order.round + 1, self._who(name), loss, spent)
        self.measured = {name: dict(zip(columns, told[name], strict=True)) for name in active}
        scalars = dict[str, float]()
        for task, name in zip(self.tasks or [""], names, strict=True):
            every = dict(zip(columns, told[name], strict=True)) | {PRESENT: float(name in active)}
            end = f"/{task}" if task else ""
            wanted = ((PRESENT,) if task else ()) + self.agreement.scalars
            scalars |= {key + end: every[key] for key in wanted}
        sent = reports.gradients().cpu().clone()  # the next round writes over it
        updates = sent.new_zeros(len(names), sent.shape[1])
        updates[[names.index(name) for name in active]] = sent
        head = None if order.head is None else self.engine.head_rows(names[:1])[0].cpu()
        content: dict[str, Any] = {
            "update": updates if self.tasks else updates[0],
            "scalars": scalars,
            **({} if head is None else {"head": head[self._common]}),
        }
        if self.ledger is not None:
            answered = {"question": asked, "reported": dict(self.reported), **content}
            slots.save({**state, "answered": answered}, keep=order.state_round)
        return Answer(order.run, order.round, order.state_round + 1, group=order.group, **content)

    def _question(self, order: Order) -> str:
        row = self.engine.client_state(self.rows[0].name)
        return question(row[OWN], int(row[ROUNDS]), self.present.shared, order.round)

    def _stored_answer(self, order: Order, slots: Slots, asked: str) -> Answer | None:
        """The answer to the same question, if it was the last one from this state."""
        known = slots.held().get(order.state_round + 1, {}).get("answered", {})
        if known.get("question") != asked:
            return None
        self.reported = dict(known["reported"])
        self.measured = {self.rows[0].name: self.reported}
        told = {key: known[key] for key in ("update", "scalars", "head") if key in known}
        return Answer(order.run, order.round, order.state_round + 1, group=order.group, **told)

    def _charge(self, order: Order, ledger: ClientLedger) -> str:
        """Let the budget pay for the answer, before there is one; what is spent, for the log."""
        name = self.rows[0].name
        self.engine.set_noise(name, ledger.noise(order.run))
        first = bool(torch.isnan(self.engine.client_state(name)[FIRST_LOSS]).any())
        epsilon = ledger.charge(order.run, order.round, first)
        return f", epsilon {epsilon:.3g} of {ledger.terms.epsilon:g}"

    def _who(self, name: str) -> str:
        return f"{name}: " if self.tasks else ""

    def _finish(self, order: Order, best: BestState | None) -> None:
        """Keep the best or the finished network with this client's head, tuned if it is to be.

        What is kept can be loaded like any run. None of it leaves this machine.
        """
        if best is not None:
            best.judge(order.round)
            best.best.restore()
            self._best_states = {}  # the best state is not held twice; the file has it still
        how = tuning(self.network, self.agreement.settings, order.round)
        personal = {} if how is None else self.engine.personalize(self.present.shared, how)
        log_personal(personal)
        more: dict[str, Any] = {"personal": personal} if personal else {}
        run = self._run(order, best, more | (best.for_manifest() if best else {}))
        place = run.save(self.folder / order.run / RESULT)
        self.result = Path(place)
        log.info("finished: network and head in %s", place)

    def _network(self, vector: Tensor) -> nn.Module:
        """The network with these numbers, as a module of its own."""
        flat = FlatNetwork(self.network)
        flat.vector.copy_(vector)
        return flat.module

    def _run(self, order: Order, best: BestState | None, more: dict[str, Any]) -> Run:
        trained = {}
        for row in self.rows:
            learned = self.engine.exported(row.name)
            own = None if learned.network is None else self._network(learned.network)
            trained[row.name] = TrainedClient.from_client(row, learned, own)
        heads = {name: one.head for name, one in trained.items()}
        manifest = {
            "format": FORMAT,
            "settings": {
                key: getattr(self.agreement.settings, key)
                for key in ("seed", "shared", "frozen", "head_init")
            },
            "weighting": {"name": "federation"},
            "clients": {row.name: _info(row) for row in self.rows},
            "blueprints": blueprints(self.network, heads, self.rows),
            **more,
        }
        shared = self._network(self.present.shared)
        return Run(trained, manifest, self._history(order.run, order.round, best), shared)

    def _history(self, run: str, round_number: int, best: BestState | None) -> History:
        """What this client measured in its rounds, its evaluations, and that of what is kept.

        For a private client also what it had spent after each of its rounds.
        """
        metrics = sorted({key for row in self.rows for key in row.task.metrics})
        noisy = self.ledger is not None or self.agreement.settings.privacy is not None
        history = History(metrics, [SPENT] if noisy else ())
        spent = [] if self.ledger is None else self.ledger.rows(run, self.rows[0].name)
        own = OwnHistory(self.folder / run).rows()
        batches = {(r["round"], r["client"]): r for r in own if r["split"] == "batch"}
        for row in spent:
            key = (row["round"], row["client"])
            batches[key] = {**batches.get(key, {}), **row}
        history.append([r for r in own if r["split"] != "batch"] + list(batches.values()))
        for number, values in (best.values if best else {}).items():
            if number < round_number:
                history.append(_evaluated(number, VALIDATION, values))
        history.append(self._evaluations(round_number))
        return history

    def _evaluations(self, number: int, kept: bool = False) -> list[Row]:
        """What the network that was sent does on each split; ``kept`` has the validation split."""
        shared, splits = self.present.shared, [s for s in SPLITS if not (kept and s == VALIDATION)]
        rows = list[Row]()
        for split in splits:
            with self._failing_in_secret(f"the evaluation of its {split} examples"):
                rows += _evaluated(number, split, self.engine.evaluate(shared, split))
        return rows


def batch_row(number: int, name: str, values: Mapping[str, float]) -> Row:
    """The history's row of a client's round."""
    about: Row = {"round": number, "epoch": float(number), "client": name, "split": "batch"}
    return {**about, "active": 1, **{key: values[key] for key in SENT}}


def _evaluated(number: int, split: str, table: Mapping[str, Mapping[str, float]]) -> list[Row]:
    about = {"round": number, "epoch": float(number), "split": split}
    return [{**about, "client": name, **values} for name, values in table.items()]


def _info(client: Client) -> dict[str, Any]:
    """What a loaded run must know about a client to predict."""
    weights = client.task.class_weights()
    return {
        "kind": client.task.kind,
        **({"class_weights": weights} if weights else {}),
        **of_task(client),
        "labels": client.labels,
        "columns": client.columns,
        **({"encoding": client.encoding.plain()} if client.encoding else {}),
        "inputs": row_form(client.train[0]),
    }


SCALARS = ("size", *SENT)
"""What may be asked of a client beside its update."""
