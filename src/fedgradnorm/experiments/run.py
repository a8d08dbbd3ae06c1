"""A run: what was trained and how it went; saved and loaded without pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from torch import Tensor, nn

from fedgradnorm.blueprint import Blueprint, describe, rebuild
from fedgradnorm.errors import ConfigError, ModelError, RunFolderError, choose
from fedgradnorm.experiments import checkpoint
from fedgradnorm.experiments.history import History, conflict_table, read_history, read_rows
from fedgradnorm.experiments.prediction_inputs import network_inputs, refused
from fedgradnorm.experiments.table import Table
from fedgradnorm.local import predict

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
ABOUT, METRICS, CONFLICT = "run.json", "metrics.csv", "conflict.csv"
NETWORK, CLIENTS = "network.safetensors", "clients"
LONGEST = 150  # file systems allow 255 bytes a name, temporary files need some of them


@dataclass
class TrainedClient:
    """A client as it left training: its head and its own running statistics, no data."""

    head: nn.Module
    kind: str
    buffers: dict[str, Tensor] = field(default_factory=dict)
    network: nn.Module | None = None
    scaling: Any = None
    labels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None


@dataclass
class Run:
    """The result of :func:`fedgradnorm.train`, and what :func:`fedgradnorm.load` returns.

    ``about`` holds seed, settings, versions and command; ``finished`` is False for a run that was
    interrupted. With ``share="none"`` every client has a network of its own in ``networks``.
    """

    clients: dict[str, TrainedClient]
    about: dict[str, Any]
    table: History
    shared: nn.Module | None
    finished: bool = True
    pairs: Table = field(default_factory=conflict_table)

    @property
    def history(self) -> pd.DataFrame:
        """One tidy table: round, epoch, client, split, loss, weight, metrics and more."""
        return self.table.frame()

    @property
    def conflict(self) -> pd.DataFrame:
        """Cosines between clients' updates, a row per recorded round and pair; often empty."""
        return self.pairs.frame()

    @property
    def network(self) -> nn.Module:
        """The shared network. Clients' own running statistics are not in it; see ``predict``."""
        if self.shared is None:
            raise ConfigError("nothing was shared in this run; see run.networks, one per client")
        return self.shared

    @property
    def networks(self) -> dict[str, nn.Module]:
        """Each client's network: the shared one, or its own where nothing was shared."""
        return {name: c.network or self.network for name, c in self.clients.items()}

    @property
    def heads(self) -> dict[str, nn.Module]:
        """Each client's head."""
        return {name: client.head for name, client in self.clients.items()}

    @property
    def weights(self) -> dict[str, float]:
        """Each client's last weight."""
        rows = [row for row in self.table.rows if row.get("weight") is not None]
        last = {row["client"]: row["weight"] for row in rows}
        return {name: last.get(name, 1.0) for name in self.clients}

    def predict(self, client: str, x: Any, *, outputs: bool = False) -> Any:
        """The client's predictions for raw inputs ``x``: classes, or values.

        A DataFrame's columns are picked by the names the client was trained with; others are left
        out. ``outputs=True`` gives the head's own outputs (logits). Tensors in, tensors out;
        arrays and DataFrames in, arrays out. A value that is not finite is a DataError.
        """
        choose(client, self.clients, "client")
        one, network = self.clients[client], self.networks[client]
        row = self.about.get("clients", {}).get(client, {}).get("inputs")
        values = network_inputs(client, x, network, one.columns, one.scaling, row)
        own = {name: b.clone() for name, b in network.named_buffers()}
        _set_buffers(network, one.buffers)
        try:
            answer = predict(network, one.head, values)
        except (RuntimeError, IndexError, ValueError) as error:
            raise refused(client, values, error) from error
        finally:
            _set_buffers(network, own)
        if one.kind == "classification" and not outputs:
            answer = answer.argmax(dim=1)
        elif one.scaling is not None:
            answer = one.scaling.restore_targets(answer)
        return answer if isinstance(x, Tensor) else answer.numpy()

    def summary(self) -> pd.DataFrame:
        """A row per client: training loss first and last, weight, and the metrics of its ``split``.

        That is the test split; a client without one is shown on its validation or training rows.
        """
        import pandas as pd

        frame = self.history
        rows = []
        for name in self.clients:
            full = frame[(frame.client == name) & (frame.split != "batch")]
            train = full[full.split == "train"]
            shown = full[full.split == full.split.iloc[-1]] if len(full) else full
            row: dict[str, Any] = {"client": name, "weight": self.weights[name]}
            if len(train):
                row["first_loss"] = train.loss.iloc[0]
                row["last_loss"] = train.loss.iloc[-1]
                row["split"] = shown.split.iloc[-1]
                metrics = shown.iloc[-1].drop(labels=["weight"]).dropna()
                row.update({k: v for k, v in metrics.items() if k in _metric_names(self.table)})
            rows.append(row)
        return pd.DataFrame(rows).set_index("client")

    def save(self, path: str | Path) -> Path:
        """Write the run to a folder: JSON, CSV and safetensors only."""
        folder = Path(path)
        (folder / CLIENTS).mkdir(parents=True, exist_ok=True)
        write_models(self, folder)
        checkpoint.write_atomically(folder / METRICS, self.table.text().encode())
        if self.pairs.rows:
            checkpoint.write_atomically(folder / CONFLICT, self.pairs.text().encode())
        write_about(folder, {**self.about, "finished": self.finished})
        return folder


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write run.json."""
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    checkpoint.write_atomically(folder / ABOUT, text.encode())


def read_about(folder: Path) -> dict[str, Any]:
    """Read run.json; a RunFolderError if there is none or it is not ours."""
    path = folder / ABOUT
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder} is no run folder: it has no {ABOUT}") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise RunFolderError(f"{path} has a format that this version cannot read")
    return about


def write_models(run: Run, folder: Path) -> None:
    """The shared network and each client's head as safetensors with plain state_dict names."""
    (folder / CLIENTS).mkdir(exist_ok=True)
    if run.shared is not None:
        checkpoint.write_tensors(folder / NETWORK, dict(run.shared.state_dict()))
    for name, client in run.clients.items():
        parts: dict[str, Mapping[str, Tensor]] = {
            "head": client.head.state_dict(),
            "buffers": client.buffers,
            "network": client.network.state_dict() if client.network else {},
            "scaling": client.scaling.state_dict() if client.scaling else {},
        }
        tensors = {f"{part}.{key}": t for part, table in parts.items() for key, t in table.items()}
        checkpoint.write_tensors(client_file(folder, name), tensors)


def client_file(folder: Path, name: str) -> Path:
    """Where a client's head is stored; any name is safe as a file name."""
    safe = quote(name, safe="")
    if len(safe) > LONGEST:
        safe = f"{safe[:LONGEST]}~{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
    return folder / CLIENTS / f"{safe}.safetensors"


def blueprints(network: nn.Module, heads: Mapping[str, nn.Module]) -> dict[str, Any]:
    """What is needed to rebuild network and heads, where that can be written down."""
    return {
        "network": describe(network),
        "heads": {name: describe(head) for name, head in heads.items()},
    }


def load(
    path: str | Path,
    network: nn.Module | None = None,
    heads: Mapping[str, nn.Module] | None = None,
) -> Run:
    """A saved run, ready to predict.

    Networks made of torch.nn layers are rebuilt by themselves; for a module class of your own give
    an instance of it as ``network`` (and ``heads`` by client), whose parameters are then filled.
    """
    folder = Path(path)
    about = read_about(folder)
    if not (folder / CLIENTS).exists():
        raise RunFolderError(f"{folder} holds no trained network yet; resume the run to finish it")
    plans, clients = about["blueprints"], {}
    shared = _module(network, plans["network"], "network")
    for name, info in about["clients"].items():
        tensors = checkpoint.read_tensors(client_file(folder, name))[0]
        head = _module((heads or {}).get(name), plans["heads"][name], f"head of client {name!r}")
        _fill(head, _part(tensors, "head"), f"head of client {name!r}")
        own = None
        if _part(tensors, "network"):
            own = _module(network, plans["network"], "network")
            _fill(own, _part(tensors, "network"), f"network of client {name!r}")
        scaling = _scaling(_part(tensors, "scaling"))
        named = {key: tuple(info[key]) for key in ("labels", "columns") if info.get(key)}
        clients[name] = TrainedClient(
            head, info["kind"], _part(tensors, "buffers"), own, scaling, **named
        )
    if (folder / NETWORK).exists():
        _fill(shared, checkpoint.read_tensors(folder / NETWORK)[0], "network")
    elif all(client.network is None for client in clients.values()):
        raise RunFolderError(f"{folder} has lost its {NETWORK}; resume the run to write it again")
    else:
        shared = None  # type: ignore[assignment]
    history = read_history(folder / METRICS)
    pairs = conflict_table()
    if (folder / CONFLICT).exists():
        pairs.append(read_rows(folder / CONFLICT))
    return Run(clients, about, history, shared, about.get("finished", False), pairs)


def _module(given: nn.Module | None, plan: Blueprint | None, what: str) -> nn.Module:
    import copy

    if given is not None:
        return copy.deepcopy(given)
    if plan is None:
        key = "network=..." if what == "network" else "heads={...}"
        raise ModelError(f"the {what} is a class of its own: give an instance, load(path, {key})")
    return rebuild(plan)


def _fill(module: nn.Module, tensors: dict[str, Tensor], what: str) -> None:
    dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), None)
    module.to(dtype=dtype)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunFolderError(f"the saved {what} does not fit: {reason}") from error


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    start = f"{part}."
    return {key[len(start) :]: t for key, t in tensors.items() if key.startswith(start)}


def _scaling(tensors: dict[str, Tensor]) -> Any:
    if not tensors:
        return None
    from fedgradnorm.data.scaling import Scaling

    return Scaling.from_state_dict(tensors)


def _set_buffers(network: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    for name, buffer in network.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])


def _metric_names(table: History) -> set[str]:
    from fedgradnorm.experiments.history import KEYS, SIGNALS

    return set(table.columns) - set(KEYS) - set(SIGNALS)
