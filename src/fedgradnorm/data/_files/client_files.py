"""Your own files as a client: CSV, Parquet, .npz, or a folder of images with a table of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgradnorm._checks import flag, shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import (
    Loaded,
    Standardize,
    client_from_arrays,
    single_precision,
    with_splits,
)
from fedgradnorm.data._bad_rows import BadRows, OnBad
from fedgradnorm.data._dropped import tell_unlabelled
from fedgradnorm.data._encoding.column_plan import ColumnPlan
from fedgradnorm.data._files.encoded_rows import encoded
from fedgradnorm.data._files.file_labels import class_numbers, label_map, tell_untrained
from fedgradnorm.data._files.file_parts import Division, dropped_rows, tell_dropped
from fedgradnorm.data._files.file_source import FileSource, data_path, named_inputs, names
from fedgradnorm.data._files.formats.image_folder import Color
from fedgradnorm.data._files.in_archive import is_there
from fedgradnorm.data._files.named_columns import TABLE_SUFFIXES, Form, read_table
from fedgradnorm.data._files.read_rows import label_text
from fedgradnorm.data._files.row_splits import SplitPlan
from fedgradnorm.data._files.task_plan import TaskPlan
from fedgradnorm.data._source import FILES, Source
from fedgradnorm.data._stems import with_stem
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._labels.label_map import LabelMap
from fedgradnorm.tasks._measures import Metric
from fedgradnorm.tasks._positions import checked_shape

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    FilePath = str | Path
    Columns = str | Sequence[str]


def client_from_files(
    name: str,
    *,
    task: str | None = None,
    tasks: Mapping[str, Mapping[str, Any]] | None = None,
    train: FilePath | pd.DataFrame,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    validation: FilePath | pd.DataFrame | None = None,
    test: FilePath | pd.DataFrame | None = None,
    inputs: Columns | Mapping[str, Columns] | None = None,
    targets: Columns | None = None,
    categories: Columns | Mapping[str, Sequence[str]] | None = None,
    dates: Columns | Mapping[str, Columns] | None = None,
    date_format: str | None = None,
    cyclic: Mapping[str, float] | None = None,
    missing: str | Mapping[str, str] = "error",
    without: Columns | None = None,
    ids: Columns | None = None,
    sequence: str | None = None,
    order: str | None = None,
    lengths: str | Mapping[str, str] | None = None,
    images: FilePath | None = None,
    size: int = 40,
    color: Color = "grey",
    x_key: str = "x",
    y_key: str = "y",
    stream: bool = False,
    split: Mapping[str, Any] | None = None,
    validation_share: float = 0.0,
    test_share: float = 0.0,
    rows: int | None = None,
    standardize: Standardize = False,
    on_bad: OnBad = "error",
    seed: int = 0,
    base: FilePath | None = None,
    format: str | None = None,
    na: str | Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
    task_name: str | None = None,
    class_weights: Literal["balanced"] | Sequence[float] | None = None,
    pos_weight: Literal["balanced"] | float | Sequence[float] | None = None,
    positive: str | int | None = None,
    above: float | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] | None = None,
    shape: int | Sequence[int] = (),
    stem: Mapping[str, Any] | nn.Module | None = None,
) -> Loaded:
    """A client from files; relative paths start at ``base``, or in the folder FEDGRADNORM_DATA.

    - Tables (.csv, .tsv, .txt, .parquet, or a DataFrame): ``targets`` names the target columns,
      ``inputs`` the input columns (by default all others).
    - Images: ``images`` is their folder, ``train`` a table whose column ``inputs`` (by default
      ``"path"``) holds paths inside it; they become ``size`` x ``size``, in ``color``.
    - Archives (.npz): arrays ``x_key`` and ``y_key``.

    - With ``stream=True``, for data larger than the memory: .parquet as above, .h5 files with the
      datasets ``x_key`` and ``y_key``, and folders with the files ``x.npy`` and ``y.npy`` (of these
      names). Inputs are numbers that stay on the disk, targets are read at once.

    A file may lie in a zip archive: ``"data.zip/folder/rows.csv"``. ``format`` says what a file
    with another ending is, such as ``adult.data``. ``na`` lists texts that mean no value, such as
    ``["?"]``; ``where`` keeps the rows in which a column has a value: ``{"hospital": "north"}``.

    Input columns are numbers. Three options make numbers of other columns: ``categories`` (a list,
    or a table with the values of each), ``dates`` (a table with their parts: hour, weekday, day,
    month, elapsed) and ``cyclic`` (a table of periods: ``{"hour": 24}``). ``missing`` says what an
    empty input becomes, for all columns or by column: "error", "mean", "median", or "indicator"
    (the mean, and one more number that is 1 there). ``without`` names inputs that this client does
    not have. All of it is learned on training rows and kept with the run, so ``predict`` takes raw
    rows.

    ``inputs`` may also be a table of named inputs, ``{"sensors": ["load", "heat"], "words": ...}``:
    the network is called with them as keyword arguments. In an archive each is the name of an
    array. ``ids`` names inputs that are whole numbers for an ``nn.Embedding``.

    A sample may be a sequence. In a table every row is then a step: ``sequence`` names the column
    that tells sequences apart, ``order`` one that says where a step stands (by default steps are in
    the order of the file). A sequence has one target, in any of its rows. In an archive ``x`` is
    padded, and ``lengths`` names the array of how many steps of each row are real.

    ``task`` is one of

    - "classification": one column of labels;
    - "binary": one column with two labels, or with a number that is ``above`` a limit or not;
    - "multilabel": a column of 0 and 1 for each label;
    - "ordinal": one column of labels with an order;
    - "regression": columns of numbers.

    ``class_weights`` (of a classification), ``pos_weight`` (of a binary or multilabel task) and
    ``metrics`` are those of the functions in :mod:`fedgradnorm.tasks`.

    Labels may be text. Sorted distinct training labels become classes 0, 1, ... unless ``labels``
    lists them; the result's ``label_names`` keeps them. In a binary task ``positive`` names the
    label that is 1. A multilabel task's labels are its columns. ``on_bad="drop"`` leaves out rows
    that cannot be read, counts them in the log and lists them in ``dropped``. A test row whose
    label has no training rows stays and counts as wrong. Clients of one task have one
    ``task_name``: see ``heads`` and ``weight_per`` in :func:`fedgradnorm.train`.

    ``split`` divides the training file: ``{"column": "part"}``, ``{"time": "date", "test": 0.2}``,
    ``{"group": "patient", "test": 0.2}`` or ``{"stratified": "state", "test": 0.2}``, in which
    each value has the same share of every split; the two shares do it at random. ``rows`` draws so
    many of them. Everything else as in :func:`client_from_arrays`.

    With a ``shape`` the targets in an archive have one: a label or number at each place, such as a
    mask. ``stem`` is a first part of the client's own, in front of the shared network, for inputs
    of another form: a table with the ``widths`` of its linear layers, of which the last is what the
    network takes.

    An empty cell, NA, NULL and the like among the targets is a missing label.

    ``tasks`` replaces ``task`` for a client with several. Each is a table with its own ``task``,
    ``targets`` (``y_key`` in archives) and whatever else concerns one task alone, such as
    ``{"state": {"task": "binary", "targets": "state"}, "hours": {"task": "regression", ...}}``.

    Args:
        name: of the client.
        task: "classification", "binary", "multilabel", "ordinal", "regression", or a registered
            kind.
        train: file of the training rows.
        classes: how many, 2 or more; labels 0 .. classes - 1 then keep their numbers.
        validation, test: files of held-out rows, instead of the shares.
        inputs: input columns (by default all others), or a table of such by the names of the
            network's arguments; with images, the column of paths (by default "path").
        without: input columns that this client does not have.
        ids: inputs that are whole numbers to look up, such as tokens: columns, arrays or names.
        sequence: column that tells sequences apart; every row of the table is a step of one.
        order: column that says where in its sequence a step stands: a number, or a date.
        lengths: array of an .npz archive that says how many steps of each row of x are real; a
            table of such for named inputs.
        categories: input columns of texts: a list, or a table with the values of each.
        dates: input columns of dates, a table with the parts that each becomes.
        date_format: how dates are written, as in ``datetime.strptime``.
        cyclic: input columns that repeat, a table with the period of each.
        missing: what an empty input becomes: "error", "mean", "median" or "indicator", for all or
            by column.
        targets: the target column or columns.
        labels: the labels of the classes, in order.
        images: folder of the images that the table names.
        size: images become size x size pixels.
        color: "grey" or "rgb".
        x_key, y_key: names of the arrays in an .npz archive, or with stream of those in an HDF5
            file or a folder.
        stream: true leaves the inputs on the disk, and reads them batch by batch.
        split: how the training file is divided: by a "column", in "time", by "group" or
            "stratified".
        rows: how many of the rows are drawn; all by default.
        validation_share, test_share: parts of the rows that are held out, each from 0 to 1.
        standardize: to mean 0 and deviation 1: true for both sides, "inputs" or "targets" for one;
            a table of constants (mean, std, target_mean, target_std), which privacy needs;
            in a config also "pooled", inputs by the training rows of all such clients together.
        on_bad: "error" stops at a row that cannot be used, "drop" leaves it out.
        seed: draws the held-out rows; the run's own unless given.
        format: "csv", "parquet", "npz" or "h5", for files whose ending does not say so.
        na: texts in tables that mean no value, such as "?".
        where: rows to keep, a table of columns with the value that each has in them.
        base: folder where relative paths start; a config's own by default.
        task_name: a name that clients of one task have in common.
        class_weights: of a classification: "balanced", or a number for each class.
        pos_weight: of a binary or multilabel task: "balanced", or what a 1 counts.
        positive: of a binary task: the label that is 1.
        above: of a binary task: the limit above which a number is 1.
        metrics: beside the usual ones, by name.
        shape: of a target in an .npz archive that has a label or number at each place.
        stem: a first part of the client's own: a table with the widths of its linear layers, and
            their activation.
        tasks: several tasks by name, each a table of its own settings.
    """
    kind = "" if task is None and tasks is not None else choose(str(task), KINDS, "task")
    given = {"class_weights": class_weights, "pos_weight": pos_weight, "metrics": metrics}
    form = checked_shape(shape)
    plan = TaskPlan(kind, task_name, classes, positive, given, labels, above, form)
    cut = None if split is None else SplitPlan.of(split)
    groups = named_inputs(inputs)
    columns = ColumnPlan.of(
        *(categories, dates, date_format, cyclic, missing, without),
        *(ids, groups, sequence, order),
    )
    source = FileSource(
        images=None if images is None else data_path(base, images, "images"),
        inputs=_listed(name, inputs, groups, columns),
        targets=names(targets or ()),
        labels=plan.reads_texts,
        size=size,
        color=color,
        x_key=x_key,
        y_key=y_key,
        stream=flag(f"client {name!r}: stream", stream),
        on_bad=on_bad,
        columns=columns,
        marks=() if cut is None else cut.columns,
        named=groups,
        ids=names(ids or ()),
        lengths=lengths,
        shape=form,
        form=_form(name, format, na, where, cut),
    )
    paths = {"train": train, "validation": validation, "test": test}
    files = {part: data_path(base, file, part) for part, file in paths.items() if file is not None}
    shares = {"validation": validation_share, "test": test_share}
    division = Division(cut, shares, rows, seed)
    if tasks is not None:
        from fedgradnorm.data._files.several_targets import load_several

        single: dict[str, Any] = {"task": task, "targets": targets, "classes": classes}
        single |= {"task_name": task_name}
        single |= {**given, "positive": positive, "labels": labels, "above": above}
        single |= {"shape": form or None}
        loaded = load_several(name, source, files, tasks, division, standardize, single)
    else:
        plan.check(name)
        loaded = _load(name, source, files, plan, division, standardize)
    return loaded if stem is None else with_stem(loaded, stem, seed)


Source(FILES, client_from_files, "your own tables, archives and images", ("base",)).register()


def values_of(column: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The values of a column in the training file that options describe; gaps are none."""
    path = data_path(given.get("base"), given.get("train"), "train")
    form = _form(str(given["name"]), given.get("format"), given.get("na", ()), None, None)
    if not is_frame(path):
        if not is_there(path):
            raise DataError(f"{path}: no such file; check the path")
        if form.suffix(path) not in TABLE_SUFFIXES:
            raise ConfigError(f"{path}: per is for tables, with a column of clients; leave it out")
    bad: BadRows[int] = BadRows(given.get("on_bad", "error"), str(path))
    cells = read_table(path, [column], bad, form).columns[column]
    found = LabelMap.seen(text for cell in cells if (text := label_text(cell)))
    if not found.names:
        raise DataError(f"{path}: column {column!r} is empty, so there is no client in it")
    # As they are written, because rows are compared with them as texts.
    texts = {label_text(cell) for cell in cells} - {""}
    return tuple(sorted(texts, key=lambda text: (found.codes([text])[0] or 0, text)))


def _form(name: str, kind: str | None, na: Any, where: Any, cut: SplitPlan | None) -> Form:
    """What is said of the tables as files, checked."""
    gaps, kept = names(na), {} if where is None else where
    if not all(isinstance(text, str) for text in gaps):
        raise ConfigError(f"client {name!r}: na must be texts, such as ['?'], not {shown(na)}")
    if not isinstance(kept, Mapping):
        raise ConfigError(f"client {name!r}: where must be a table, column = value, not {where!r}")
    values = {str(column): str(value).strip() for column, value in kept.items()}
    free = cut.columns if cut is not None and cut.way == "stratified" else ()
    return Form(kind, tuple(text.strip() for text in gaps), values, free)


def _listed(
    name: str, inputs: Any, groups: Mapping[str, tuple[str, ...]], columns: ColumnPlan
) -> tuple[str, ...] | None:
    """The input columns, whether or not they are in groups."""
    if inputs is None:
        return None
    every = tuple(c for group in groups.values() for c in group) if groups else names(inputs)
    for column in columns.steps:
        if column in every:
            raise ConfigError(
                f"client {name!r}: column {column!r} tells sequences or steps apart, so it is no "
                "input; leave it out of inputs, or copy it to another column"
            )
    return every


def _load(
    name: str,
    source: FileSource,
    files: Mapping[str, Any],
    plan: TaskPlan,
    division: Division,
    standardize: Standardize,
) -> Loaded:
    """Read every split, turn labels into class numbers and columns into numbers."""
    splits = source.read_all(files)
    parts = division.parts(name, splits)
    tell_dropped(name, splits.values())
    known = label_map(splits, plan) if plan.counted else None
    made = encoded(name, source.columns, parts, standardize)
    y = {
        part: np.asarray(rows.y)[at] if known is None else class_numbers(rows, at, known, plan)
        for part, (rows, at) in parts.items()
    }
    tell_unlabelled(name, list(y.values()))
    task = plan.make(len(known.names) if known else plan.outputs_in(y["train"].shape[1:]))
    x, left = made.x, made.standardize
    if left == "targets" != standardize and not task.has_real_targets:
        left = False
    held: dict[str, Any] = {part: (x[part], y[part]) for part in SPLITS[1:] if part in x}
    train = x["train"], y["train"]
    loaded = client_from_arrays(name, task, train, **held, standardize=left)
    scaling, encoding = made.merged(loaded.scaling), made.encoding
    called = known.names if known else None
    if plan.kind == "multilabel" and source.targets:
        called = source.targets
    columns = splits["train"].inputs if encoding is None else encoding.features
    columns = columns if made.flat else None
    client = _single_precision(loaded.client)
    learned = known is not None and not plan.is_public(known.names)
    client = replace(client, labels=called, columns=columns, encoding=encoding, scaling=scaling)
    client = replace(client, labels_learned=learned)
    tell_untrained(client)
    return Loaded(client, scaling, called, dropped_rows(splits.values()))


def _single_precision(client: Client) -> Client:
    """Files hold numbers as text or doubles; training is in float32 unless arrays say otherwise."""
    return with_splits(
        client,
        {
            split: single_precision(pair)
            for split in SPLITS
            if (pair := getattr(client, split)) is not None
        },
    )
