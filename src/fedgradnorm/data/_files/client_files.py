"""Your own files as a client: CSV, Parquet, .npz, or a folder of images with a table of labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import Loaded, Standardize, client_from_arrays, held_out, with_splits
from fedgradnorm.data._bad_rows import OnBad
from fedgradnorm.data._dropped import log_dropped
from fedgradnorm.data._encoding.column_plan import ColumnPlan
from fedgradnorm.data._files.encoded_rows import encoded
from fedgradnorm.data._files.file_labels import class_numbers, label_map, tell_untrained
from fedgradnorm.data._files.file_source import FileSource, data_path, names
from fedgradnorm.data._files.image_folder import Color
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._files.row_splits import SplitPlan, fewer
from fedgradnorm.data._files.task_plan import TaskPlan
from fedgradnorm.tasks._measures import Metric
from fedgradnorm.tasks._task import TaskKind

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    FilePath = str | Path
    Columns = str | Sequence[str]
    Part = tuple[FileRows, NDArray[np.int64]]


def client_from_files(
    name: str,
    *,
    task: TaskKind,
    train: FilePath | pd.DataFrame,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    validation: FilePath | pd.DataFrame | None = None,
    test: FilePath | pd.DataFrame | None = None,
    inputs: Columns | None = None,
    targets: Columns | None = None,
    categories: Columns | Mapping[str, Sequence[str]] | None = None,
    dates: Columns | Mapping[str, Columns] | None = None,
    date_format: str | None = None,
    cyclic: Mapping[str, float] | None = None,
    missing: str | Mapping[str, str] = "error",
    without: Columns | None = None,
    images: FilePath | None = None,
    size: int = 40,
    color: Color = "grey",
    x_key: str = "x",
    y_key: str = "y",
    split: Mapping[str, Any] | None = None,
    validation_share: float = 0.0,
    test_share: float = 0.0,
    rows: int | None = None,
    standardize: Standardize = False,
    on_bad: OnBad = "error",
    seed: int = 0,
    base: FilePath | None = None,
    task_name: str | None = None,
    class_weights: Literal["balanced"] | Sequence[float] | None = None,
    pos_weight: Literal["balanced"] | float | Sequence[float] | None = None,
    positive: str | int | None = None,
    above: float | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] | None = None,
) -> Loaded:
    """A client from files; relative paths start at ``base``, or in the folder FEDGRADNORM_DATA.

    - Tables (.csv, .tsv, .txt, .parquet, or a DataFrame): ``targets`` names the target columns,
      ``inputs`` the input columns (by default all others).
    - Images: ``images`` is their folder, ``train`` a table whose column ``inputs`` (by default
      ``"path"``) holds paths inside it; they become ``size`` x ``size``, in ``color``.
    - Archives (.npz): arrays ``x_key`` and ``y_key``.

    A file may lie in a zip archive: ``"data.zip/folder/rows.csv"``.

    Input columns are numbers, unless they are named in ``categories`` (a list, or a table with the
    values of each), ``dates`` (a table with their parts: hour, weekday, day, month, elapsed) or
    ``cyclic`` (a table of periods: ``{"hour": 24}``). ``missing`` says what an empty input becomes:
    "error", "mean", "median" or "indicator" (the mean, and a number more that says so), for all or
    by column. ``without`` names inputs that this client does not have. All of it is learned on
    training rows and kept with the run, so ``predict`` takes raw rows.

    ``task`` is "classification" (one column of labels), "binary" (the same, with two labels, or a
    number that is ``above`` a limit or not), "multilabel" (a column of 0 and 1 for each label) or
    "regression". ``class_weights`` (of a classification), ``pos_weight`` (of the next two) and
    ``metrics`` are those of the functions in :mod:`fedgradnorm.tasks`.

    Labels may be text: sorted distinct training labels become classes 0, 1, ... unless ``labels``
    lists them; the result's ``label_names`` keeps them. In a binary task ``positive`` names the
    label that is 1; a multilabel task's labels are its columns. ``on_bad="drop"`` leaves out rows
    that cannot be read, sums them up in the log and lists them in ``dropped``; a test row whose
    label has no training rows stays and counts as wrong. ``task_name`` is that of the task, for
    clients that have one in common: see ``heads`` and ``key`` in :func:`fedgradnorm.train`.

    ``split`` divides the training file: ``{"column": "part"}``, ``{"time": "date", "test": 0.2}``
    or ``{"group": "patient", "test": 0.2}``; the two shares do it at random. ``rows`` draws so many
    of them. Everything else as in :func:`client_from_arrays`.
    """
    cut = None if split is None else SplitPlan.of(split)
    source = FileSource(
        images=None if images is None else data_path(base, images, "images"),
        inputs=None if inputs is None else names(inputs),
        targets=names(targets or ()),
        labels=choose(task, get_args(TaskKind), "task") in ("classification", "binary")
        and above is None,
        size=size,
        color=color,
        x_key=x_key,
        y_key=y_key,
        on_bad=on_bad,
        columns=ColumnPlan.of(categories, dates, date_format, cyclic, missing, without),
        marks=() if cut is None else cut.columns,
    )
    files = {"train": train, "validation": validation, "test": test}
    found = {part: data_path(base, file, part) for part, file in files.items() if file is not None}
    given = {"class_weights": class_weights, "pos_weight": pos_weight, "metrics": metrics}
    plan = TaskPlan(task, task_name, classes, positive, given, labels, above)
    plan.check(name)
    shares = {"validation": validation_share, "test": test_share}
    splits = source.read_all(found)
    parts = _parts(name, splits, cut, shares, seed)
    return _client(name, source, plan, fewer(parts, rows, seed, name), standardize)


def _parts(
    name: str,
    splits: Mapping[str, FileRows],
    cut: SplitPlan | None,
    shares: Mapping[str, float],
    seed: int,
) -> dict[str, Part]:
    """Which rows of which file each split has; bad rows are in none."""
    for rows in splits.values():
        if not len(rows.good()):
            raise _no_rows(rows)
    if cut is not None:
        doubled = [s for s in SPLITS[1:] if s in splits or shares[s]]
        if doubled:
            raise ConfigError(
                f"client {name!r}: split and {doubled[0]} data or {doubled[0]}_share are both "
                "given; choose one"
            )
        train = splits["train"]
        return {part: (train, index) for part, index in cut.parts(train, seed).items()}
    good = splits["train"].good()
    drawn = held_out(name, len(good), shares, [s for s in SPLITS[1:] if s in splits], seed)
    found = {part: (splits["train"], good[index]) for part, index in drawn.items()}
    return {**{part: (rows, rows.good()) for part, rows in splits.items()}, **found}


def _client(
    name: str,
    source: FileSource,
    plan: TaskPlan,
    parts: Mapping[str, Part],
    standardize: Standardize,
) -> Loaded:
    """Turn labels into class numbers and columns into numbers, and make the client."""
    files = list({id(rows): rows for rows, _ in parts.values()}.values())
    _tell_dropped(name, files)
    labelled = plan.kind in ("classification", "binary")
    known = label_map({s: rows for s, (rows, _) in parts.items()}, plan) if labelled else None
    encoding, x = encoded(name, source.columns, parts)
    y = {
        part: np.asarray(rows.y)[at] if known is None else class_numbers(rows, at, known, plan)
        for part, (rows, at) in parts.items()
    }
    task = plan.make(len(known.names) if known else y["train"].shape[-1])
    held = {part: (x[part], y[part]) if part in x else None for part in SPLITS}
    assert held["train"] is not None
    loaded = client_from_arrays(
        name,
        task,
        held["train"],
        validation=held["validation"],
        test=held["test"],
        standardize=standardize,
    )
    called = known.names if known else None
    if plan.kind == "multilabel" and source.targets:
        called = source.targets
    columns = parts["train"][0].inputs if encoding is None else encoding.features
    client = _single_precision(loaded.client)
    client = replace(client, labels=called, columns=columns, encoding=encoding)
    tell_untrained(client)
    dropped = {rows.bad.source: tuple(sorted(rows.bad.reasons)) for rows in files}
    kept = {file: numbers for file, numbers in dropped.items() if numbers}
    return Loaded(client, loaded.scaling, called, kept)


def _tell_dropped(name: str, splits: Collection[FileRows]) -> None:
    """One line in the log about all rows that were left out of the client's files."""
    reasons = [
        f"{rows.bad.reasons[row]} [{Path(rows.bad.source).name}]"
        for rows in splits
        for row in sorted(rows.bad.reasons)
    ]
    total = sum(len(rows.rows) for rows in splits)
    what = f"client {name!r}: dropped {len(reasons)} of {total} rows"
    log_dropped(what, reasons, ", and by number in Loaded.dropped")


def _no_rows(rows: FileRows) -> DataError:
    why = f"all {len(rows.rows)} were dropped" if len(rows.rows) else "it has none"
    return DataError(f"{rows.bad.source}: no rows left to use, {why}; check the file")


def _single_precision(client: Client) -> Client:
    """Files hold numbers as text or doubles; training is in float32 unless arrays say otherwise."""
    return with_splits(
        client,
        {
            split: (pair[0].float(), pair[1].float() if pair[1].is_floating_point() else pair[1])
            for split in SPLITS
            if (pair := getattr(client, split)) is not None
        },
    )
