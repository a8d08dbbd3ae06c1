"""Rows of files as a client: columns become numbers, labels class numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._arrays import (
    Loaded,
    Standardize,
    client_from_arrays,
    single_precision,
    with_splits,
)
from fedgradnorm.data._bad_rows import log_dropped, tell_unlabelled
from fedgradnorm.data._files.columns import CategoryColumn
from fedgradnorm.data._files.encoding import Encoding, tell_unknown
from fedgradnorm.data._files.inputs import ColumnPlan
from fedgradnorm.data._files.labels import class_numbers, label_map, tell_untrained
from fedgradnorm.data._files.reading import Reader
from fedgradnorm.data._files.rows import FileRows
from fedgradnorm.data._files.splitting import Split
from fedgradnorm.data._files.target import Target
from fedgradnorm.data._scaling import Scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedgradnorm.tasks._labels.label_map import LabelMap

    Part = tuple[FileRows, NDArray[np.int64]]


def load(
    name: str,
    reader: Reader,
    files: Mapping[str, Any],
    split: Split,
    standardize: Standardize,
    seed: int,
) -> Loaded:
    """Read every file, divide the rows, and make the client of them."""
    read = reader.read_all(files)
    parts = split.parts(name, read, seed)
    _tell_dropped(name, read.values())
    targets = reader.targets
    known = {k: label_map(read, k, one) if one.counted else None for k, one in targets.items()}
    made = encoded(name, reader.plan, parts, standardize)
    y: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key, one in targets.items():
        for part, (rows, at) in parts.items():
            labels = known[key]
            y[part][key] = (
                np.asarray(rows.y[key])[at]
                if labels is None
                else class_numbers(rows, key, at, labels, one)
            )
        tell_unlabelled(f"{name}/{key}" if key else name, [y[part][key] for part in parts])
    columns = read["train"].inputs if made.encoding is None else made.encoding.features
    made = replace(made, columns=columns if made.flat else None)
    singles = {}
    for key, one in targets.items():
        who, own = f"{name}/{key}" if key else name, {part: y[part][key] for part in parts}
        singles[key] = _single(who, one, made, own, known[key], lenient=bool(key))
    loaded = singles[""] if "" in singles else Loaded(_joined(name, singles, made))
    for row in loaded.client.rows:
        tell_untrained(row)
    return replace(loaded, dropped=_dropped(read.values()))


def _single(
    name: str,
    target: Target,
    made: Encoded,
    y: Mapping[str, Any],
    known: LabelMap | None,
    *,
    lenient: bool,
) -> Loaded:
    """A client with one task; where it is one of several, it may be none with real targets."""
    if known is not None:
        task, called = target.make(len(known.names)), known.names
    else:
        task = target.make(target.outputs_in(y["train"].shape[1:]))
        called = target.columns if target.task == "multilabel" else ()
    how = made.standardize
    if how == "targets" and (lenient or made.arranged) and not task.has_real_targets:
        how = False
    pairs: dict[str, Any] = {part: (made.x[part], own) for part, own in y.items()}
    loaded = client_from_arrays(name, task, pairs.pop("train"), **pairs, standardize=how)
    client, scaling = loaded.client, made.merged(loaded.scaling)
    # Files hold numbers as texts or doubles; training is in single precision.
    single = {s: single_precision(pair) for s in SPLITS if (pair := getattr(client, s)) is not None}
    client = replace(
        with_splits(client, single),
        labels=called or None,
        columns=made.columns,
        encoding=made.encoding,
        scaling=scaling,
    )
    learned = known is not None and not target.is_public(known.names)
    return Loaded(replace(client, labels_learned=learned), scaling, called or None)


def _joined(name: str, singles: Mapping[str, Loaded], made: Encoded) -> Client:
    """A client with several tasks, made of one for each; they share the inputs."""
    if isinstance(made.standardize, Mapping):
        raise ConfigError(
            f"client {name!r}: constants in standardize are for a client with one task; scale the "
            "data beforehand"
        )
    clients = {key: loaded.client for key, loaded in singles.items()}
    first = next(iter(clients.values()))
    pairs = {
        split: (pair[0], {key: getattr(one, split)[1] for key, one in clients.items()})
        for split in SPLITS
        if (pair := getattr(first, split)) is not None
    }
    return Client(
        name,
        tasks={key: one.task for key, one in clients.items()},
        train=pairs["train"],
        test=pairs.get("test"),
        validation=pairs.get("validation"),
        scaling={k: one.scaling for k, one in clients.items() if one.scaling is not None} or None,
        labels={k: one.labels for k, one in clients.items() if one.labels is not None} or None,
        columns=made.columns,
        encoding=made.encoding,
    )


@dataclass(frozen=True)
class Encoded:
    """The inputs of each split, how they were made, and what is still to be standardised.

    ``scaling`` is that of inputs which no longer are one table: those are ``arranged``, and scaled
    here. ``columns`` are the names of the numbers of a row.
    """

    x: dict[str, Any]
    encoding: Encoding | None
    standardize: Standardize
    scaling: Scaling | None = None
    arranged: bool = False
    columns: tuple[str, ...] | None = None

    @property
    def flat(self) -> bool:
        """Whether the inputs are one table of numbers, whose columns have names."""
        return self.encoding is None or self.encoding.flat

    def merged(self, of_targets: Scaling | None) -> Scaling | None:
        """What was done to the inputs here, and to the targets elsewhere."""
        if self.scaling is None or of_targets is None:
            return self.scaling or of_targets
        inputs = self.scaling.input_mean, self.scaling.input_std
        return replace(of_targets, input_mean=inputs[0], input_std=inputs[1])


def encoded(
    name: str, plan: ColumnPlan, parts: Mapping[str, Part], standardize: Standardize
) -> Encoded:
    """The inputs of each split; with an encoding where columns are more than plain numbers."""
    x = {part: rows.inputs_at(at) for part, (rows, at) in parts.items()}
    if not isinstance(x["train"], pd.DataFrame):  # archives and images have no columns
        ids = isinstance(x["train"], np.ndarray) and x["train"].dtype.kind == "i"
        if ids and standardize in (True, "inputs"):
            raise ConfigError(
                f"client {name!r}: ids are not standardised; use standardize = 'targets', or leave "
                "it out"
            )
        return Encoded(x, None, standardize)
    if plan.plain:
        plain = {part: np.array(own, dtype=np.float64, order="C") for part, own in x.items()}
        return Encoded(plain, None, standardize)
    encoding = plan.learned(x["train"], parts["train"][0].places.bad.source)
    codes = {
        part: _codes(f"client {name!r}, {part} data", encoding, own) for part, own in x.items()
    }
    numbers = {part: encoding.encode(own) for part, own in codes.items()}
    if encoding.flat:
        return Encoded({part: own.numpy() for part, own in numbers.items()}, encoding, standardize)
    if isinstance(standardize, Mapping):
        raise ConfigError(
            f"client {name!r}: constants in standardize are for one table of numbers; scale the "
            "data beforehand"
        )
    scaling = _input_scaling(name, encoding, numbers["train"], standardize)
    if scaling is not None:
        numbers = {part: scaling.scale_inputs(own) for part, own in numbers.items()}
    arranged = {part: encoding.arranged(own, codes[part]) for part, own in numbers.items()}
    left: Standardize = False if standardize in (False, "inputs") else "targets"
    return Encoded(arranged, encoding, left, scaling, arranged=standardize is True)


def _input_scaling(
    name: str, encoding: Encoding, numbers: Tensor, standardize: Standardize
) -> Scaling | None:
    """Mean and deviation of the training rows' or steps' numbers; ids are left as they are."""
    if standardize not in (True, "inputs") or not any(encoding.scalable):
        return None
    try:
        learned = Scaling.fit(numbers, numbers)
    except DataError as error:
        raise DataError(f"client {name!r}, training data: {error}") from error
    assert learned.input_mean is not None
    assert learned.input_std is not None
    free = torch.tensor(encoding.scalable)
    mean = torch.where(free, learned.input_mean, 0.0)
    return Scaling(mean, torch.where(free, learned.input_std, 1.0))


def _codes(where: str, encoding: Encoding, rows: pd.DataFrame) -> Tensor:
    """The codes of rows that were read, by what the training rows taught."""
    found = []
    for column in encoding.columns:
        read = rows[column.name].to_numpy()
        codes = np.full(len(rows), np.nan) if column.absent else column.coded(read)
        if isinstance(column, CategoryColumn):
            tell_unknown(column, read, codes, where)
        found.append(codes)
    return torch.from_numpy(np.stack(found, axis=1))


def _tell_dropped(name: str, files: Collection[FileRows]) -> None:
    """One line in the log about all rows that were left out of the client's files."""
    reasons = [
        f"{why} [{Path(rows.places.bad.source).name}]"
        for rows in files
        for _, why in sorted(rows.places.bad.reasons.items())
    ]
    total = sum(len(rows.places.numbers) for rows in files)
    what = f"client {name!r}: dropped {len(reasons)} of {total} rows"
    log_dropped(what, reasons, ", and by number in Loaded.dropped")


def _dropped(files: Collection[FileRows]) -> dict[str, tuple[int, ...]]:
    """The numbers of the rows that were left out, by file."""
    found = {rows.places.bad.source: tuple(sorted(rows.places.bad.reasons)) for rows in files}
    return {file: numbers for file, numbers in found.items() if numbers}
