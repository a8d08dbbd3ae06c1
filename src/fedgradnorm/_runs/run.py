"""A run: what was trained and how it went; saved and loaded without pickle."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from fedgradnorm._benefit.benefit import Benefit
from fedgradnorm._benefit.measuring import By, benefit_of
from fedgradnorm._checks import shown
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._round.evaluation import predict
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.csv_table import Table, checksum_of
from fedgradnorm._runs.files import CHOOSE, writing
from fedgradnorm._runs.history import History, metric_columns
from fedgradnorm._runs.layout import METRICS, SPREAD
from fedgradnorm._runs.manifest import identity, write_manifest
from fedgradnorm._runs.predicting import (
    Answer,
    answered,
    asked_for,
    holds_tensors,
    in_pieces,
    network_inputs,
    refused,
)
from fedgradnorm._runs.spread import groups_of, spread_rows, spread_table
from fedgradnorm._runs.trained import TrainedClient, write_models
from fedgradnorm.models._dividing import put_parts
from fedgradnorm.models._fitting import as_input, with_stem
from fedgradnorm.models._input_rows import Inputs

if TYPE_CHECKING:
    import pandas as pd

    from fedgradnorm.weighting import Weighting


@dataclass(repr=False)
class Run:
    """The result of :func:`fedgradnorm.train`, and what :func:`fedgradnorm.load` returns.

    ``manifest`` has the seed, settings, versions and command; ``finished`` is False if the run was
    interrupted. With ``share="none"``, every client has its own network in ``networks``.
    ``folder`` is where the run is saved, or None.
    """

    clients: Mapping[str, TrainedClient]
    manifest: dict[str, Any]
    table: History
    shared: nn.Module | None
    finished: bool = True
    quantiles: Table = field(default_factory=spread_table)
    folder: Path | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        done = max((row["round"] for row in self.table.rows), default=0)
        rounds = self.manifest.get("rounds", done)
        state = "finished" if self.finished else "not finished"
        state += f", {len(self.diverged)} diverged" if self.diverged else ""
        count = f"{len(self.clients)} client{'s' * (len(self.clients) != 1)}"
        where = "" if self.folder is None else f", folder {str(self.folder)!r}"
        method = self.manifest.get("weighting", {}).get("name", "")
        alone = ", nothing shared" if self.shared is None else ""
        return f"Run({method}{alone}: {count}, {done} of {rounds} rounds, {state}{where})"

    @property
    def diverged(self) -> list[str]:
        """The clients that diverged: their loss is not finite, or 10,000 times their first loss.

        Do not use their predictions. Lower the learning rate, or check their data.
        """
        return list(self.manifest.get("diverged", ()))

    @property
    def history(self) -> pd.DataFrame:
        """One tidy table: round, epoch, client, split, loss, weight, metrics and more."""
        return self.table.frame()

    @property
    def spread(self) -> pd.DataFrame:
        """Quantiles over clients: a row per round, split, task and quantity.

        Quantities are the loss, the weight and the metrics. With many clients, ``history`` has rows
        of only a few of them, but these quantiles are over all clients that participated or were
        evaluated. In other runs, they are over the rows of ``history``.
        """
        table = self.quantiles
        if not table.rows:
            known = self.manifest.get("clients", {})
            groups = groups_of({name: known.get(name, {}) for name in self.clients})
            table = spread_table()
            table.append(spread_rows(self.table.rows, groups, metric_columns(self.table.rows)))
        return table.frame()

    @property
    def network(self) -> nn.Module:
        """The shared network. Clients' own running statistics are not in it; see ``predict``."""
        if self.shared is None:
            raise ConfigError("nothing was shared in this run; see run.networks, one per client")
        return self.shared

    @property
    def networks(self) -> dict[str, nn.Module]:
        """Each client's network: the shared one, or its own if nothing was shared.

        If parts of the network are private, it is a copy with the client's own parts.
        """
        return {name: self._filled(name) for name in self.clients}

    def network_of(self, client: str) -> nn.Module:
        """The network that a client's own parts are put into."""
        return self.clients[client].network or self.network

    def _filled(self, name: str) -> nn.Module:
        """A client's network, with its private parameters if it has any."""
        network, parts = self.network_of(name), self.clients[name].buffers
        if not any(key in parts for key, _ in network.named_parameters()):
            return network
        network = copy.deepcopy(network)
        put_parts(network, parts)
        return network

    @property
    def heads(self) -> dict[str, nn.Module]:
        """Each client's head."""
        return {name: client.head for name, client in self.clients.items()}

    @property
    def weights(self) -> dict[str, float]:
        """Each client's last weight."""
        if known := self.manifest.get("weights"):
            return {name: known.get(name, 1.0) for name in self.clients}
        rows = [row for row in self.table.rows if row.get("weight") is not None]
        last = {row["client"]: row["weight"] for row in rows}
        return {name: last.get(name, 1.0) for name in self.clients}

    def predict(
        self, client: str, x: Any, *, kind: Answer | None = None, outputs: bool = False
    ) -> Any:
        """The client's predictions for raw inputs ``x``: class numbers, or values.

        Use ``kind`` to ask for something else:

        - "class": class numbers, or rows of 0 and 1;
        - "label": the names of the classes; for a multilabel task a tuple of names for each row;
        - "probability": by softmax for each class, or by sigmoid for a 1;
        - "output": the head's own outputs, in a regression the values, as with ``outputs=True``.

        Columns of a DataFrame are selected by the names the client was trained with; others are
        ignored. Categories, dates and missing values are encoded as in training. An unknown
        category becomes all zeros, with a warning in the log. Tensors in, tensors out; arrays and
        DataFrames in, arrays out; names are always in an array. Named inputs are a dict and
        sequences a list of arrays, as in training. Inputs can also be streamed: a Dataset (of
        inputs, or of pairs), a memory map, :func:`fedgradnorm.data.stream`. A value that is not
        finite is a DataError. For a client with several tasks, name one of them
        (``"client/task"``), or the client itself for a dict of predictions by task.
        """
        rows = self.rows_of(client)
        if rows != [client]:
            start = f"{client}/"
            return {
                row.removeprefix(start): self.predict(row, x, kind=kind, outputs=outputs)
                for row in rows
            }
        parts = in_pieces(client, x)
        if parts is not None:
            each = [self.predict(client, part, kind=kind, outputs=outputs) for part in parts]
            return np.concatenate([np.asarray(part) for part in each])
        wanted = asked_for(client, self.clients[client], kind, outputs)
        one, network = self.clients[client], self.network_of(client)
        row = self.manifest.get("clients", {}).get(client, {}).get("inputs")
        values = network_inputs(client, x, network, one, row)
        answer = answered(one, self.head_outputs(client, values), wanted)
        return answer.numpy() if isinstance(answer, Tensor) and not holds_tensors(x) else answer

    def rows_of(self, client: str) -> list[str]:
        """The rows of a client, one for each of its tasks; a plain client is its own row."""
        if client in self.clients:
            return [client]
        rows = [name for name, one in self.clients.items() if one.of == client]
        owners = [one.of for one in self.clients.values() if one.of]
        return rows or [choose(client, [*self.clients, *owners], "client")]

    def head_outputs(self, client: str, x: Inputs) -> Tensor:
        """The client's outputs for ``x`` as its training data is: neither is scaled here."""
        one, network = self.clients[client], self.network_of(client)
        values = as_input(x, network, "cpu", one.stem)
        every = [*network.named_buffers(), *network.named_parameters()]
        own = {name: part.detach().clone() for name, part in every if name in one.buffers}
        put_parts(network, one.buffers)
        try:
            return predict(with_stem(one.stem, network), one.head, values)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise refused(client, values, error) from error
        finally:
            put_parts(network, own)

    def personalize(
        self,
        client: Client,
        *,
        steps: int = 200,
        lr: float | None = None,
        what: str | list[str] = "head",
    ) -> Run:
        """Tune a head on the client's training examples; returns a new run with the client in it.

        A new client starts with a new head, or with the one that the clients of its task share; a
        client of this run starts with its own, which the tuned one replaces. With
        ``what="network"``, or a list of layers, the client also tunes its own copy of the network.
        The step with the best validation loss is kept, step 0 included; without validation
        examples, the last one. Learning rate, batch size, optimizer and seed default to those of
        this run. This run and its shared network do not change.
        """
        from fedgradnorm._runs.starting import personalized

        rate = {} if lr is None else {"lr": lr}
        return personalized(self, client, {"steps": steps, "what": what, **rate})

    def add(
        self,
        client: Client,
        others: Sequence[Client],
        *,
        weighting: Weighting | None = None,
        **changes: Any,
    ) -> Run:
        """Continue training with one more client; ``others`` are all clients of this run.

        This is ``fgn.train(run, clients)`` with the network, the weighting and the settings of this
        run; ``changes`` are keywords of :func:`fedgradnorm.train`, such as ``rounds`` or
        ``folder``. A run contains no data, so you have to pass its clients again.
        """
        from fedgradnorm._runs.starting import added

        return added(self, client, others, weighting, changes)

    def export(self, client: str, path: str | Path, *, x: Any = None) -> Path:
        """Write one client as a program: encoding, scaling, network, running statistics and head.

        The path must end with .pt2, PyTorch's own format (torch.export). Run the program with
        ``torch.export.load(path).module()(x)``, or turn it into an ONNX model with
        ``torch.onnx.export(torch.export.load(path)).save("model.onnx")``.
        It takes any number of raw examples as one tensor, and returns what ``predict`` does with
        ``outputs=True``. Pass categories by their position in the list, and dates in seconds
        since 1970; the extra file ``columns.json`` describes them. ``x`` is a few examples, which
        set the program's dtype; the default is float64 if inputs are scaled, otherwise the
        network's dtype. The program is compared with ``predict`` before the file is written.
        """
        from fedgradnorm._runs.exporting import export

        return export(self, client, path, x)

    def benefit(
        self, alone: Run, clients: Iterable[Client], *, by: By = "score", seed: int = 0
    ) -> Benefit:
        """What ``clients`` gain in this run over ``alone``, a run with share="none".

        Both must be finished runs of these clients; they are compared on the clients' test
        examples. You may leave out clients. Classifiers are compared by accuracy (``by="loss"``: by
        loss), regressions by loss. Intervals come from a paired bootstrap, seeded by ``seed``.
        """
        if not isinstance(alone, Run):
            raise ConfigError(f"alone must be a run trained with share='none', not {shown(alone)}")
        if self.shared is None and alone.shared is not None:
            raise ConfigError(
                "this run shares nothing, and the one given shares a network: call benefit on the "
                "run trained together, joined.benefit(alone, clients)"
            )
        return benefit_of(self, alone, clients, by=by, seed=seed)

    def summary(self) -> pd.DataFrame:
        """A row per client: first and last training loss, weight, and the metrics of its ``split``.

        That is the test split, or for a client without one the validation or training examples.
        ``score`` is the client's first named metric, or else accuracy or mae, and ``baseline`` is
        what always predicting the most frequent class, or the mean, scores by that metric.
        ``kept_round`` is the round that the client ended with, if the best one was kept.
        """
        from fedgradnorm._runs.run_summary import summary_of

        return summary_of(self)

    def save(self, path: str | Path) -> Path:
        """Write the run to a folder: JSON, CSV and safetensors only."""
        folder = Path(path)
        tables = {METRICS: self.table, SPREAD: self.quantiles}
        with writing(folder, CHOOSE):
            folder.mkdir(parents=True, exist_ok=True)
            write_models(self.shared, self.clients, folder, identity(self.manifest))
            texts = {n: t.text().encode() for n, t in tables.items() if t.rows or n == METRICS}
            for name, text in texts.items():
                checkpoint.write_atomically(folder / name, text)
            sums = {name: checksum_of(text) for name, text in texts.items()}
            write_manifest(folder, {**self.manifest, "finished": self.finished, "tables": sums})
        return folder
