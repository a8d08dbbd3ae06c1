"""Your own files as a client: CSV, Parquet, .npz, or a folder of images with a table of labels."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from fedgradnorm._checks import shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import (
    Loaded,
    Standardize,
    client_from_arrays,
    with_splits,
)
from fedgradnorm.data._bad_rows import BadRows, OnBad
from fedgradnorm.data._dropped import log_dropped, tell_unlabelled
from fedgradnorm.data._files.class_labels import LabelMap
from fedgradnorm.data._files.image_folder import Color, rows_from_images
from fedgradnorm.data._files.named_columns import TABLE_SUFFIXES, check_columns, rows_from_table
from fedgradnorm.data._files.npz import rows_from_npz
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._files.task_plan import TaskPlan
from fedgradnorm.data._paths import is_file, user_path
from fedgradnorm.tasks._measures import Metric
from fedgradnorm.tasks._task import TaskKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FilePath = str | Path
    Arrays = tuple[NDArray[Any], NDArray[Any]]

log = logging.getLogger(__name__)

KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
COUNTED = ("classification", "binary", "ordinal")  # a label a row
SHOWN = 10  # labels that a line of the log names


def client_from_files(
    name: str,
    *,
    task: TaskKind | None = None,
    tasks: Mapping[str, Mapping[str, Any]] | None = None,
    train: FilePath,
    classes: int | None = None,
    validation: FilePath | None = None,
    test: FilePath | None = None,
    inputs: str | Sequence[str] | None = None,
    targets: str | Sequence[str] | None = None,
    images: FilePath | None = None,
    size: int = 40,
    color: Color = "grey",
    x_key: str = "x",
    y_key: str = "y",
    validation_share: float = 0.0,
    test_share: float = 0.0,
    standardize: Standardize = False,
    on_bad: OnBad = "error",
    seed: int = 0,
    base: FilePath | None = None,
    task_name: str | None = None,
    class_weights: Literal["balanced"] | Sequence[float] | None = None,
    pos_weight: Literal["balanced"] | float | Sequence[float] | None = None,
    positive: str | int | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] | None = None,
) -> Loaded:
    """A client from files; relative paths start at ``base``.

    - Tables (.csv, .tsv, .txt, .parquet): ``targets`` names the target columns, ``inputs`` the
      input columns (by default all others).
    - Images: ``images`` is their folder, ``train`` a table whose column ``inputs`` (by default
      ``"path"``) holds paths inside it; they become ``size`` x ``size``, in ``color``.
    - Archives (.npz): arrays ``x_key`` and ``y_key``.

    ``task`` is "classification" (one column of labels), "binary" (the same, with two labels),
    "multilabel" (a column of 0 and 1 for each label) or "regression". ``class_weights`` (of a
    classification), ``pos_weight`` (of the next two) and ``metrics`` are those of the functions in
    :mod:`fedgradnorm.tasks`.

    Labels may be text: sorted distinct training labels become classes 0, 1, ... and the result's
    ``label_names`` keeps them. In a binary task ``positive`` names the label that is 1; a
    multilabel task's labels are its columns. ``on_bad="drop"`` leaves out rows that cannot be read,
    sums them up in the log and lists them in ``dropped``; a test row whose label has no training
    rows stays and counts as wrong. ``task_name`` is that of the task, for clients that have one in
    common: see ``heads`` and ``key`` in :func:`fedgradnorm.train`. Everything else as in
    :func:`client_from_arrays`.

    An empty cell, NA, NULL and the like among the targets is a label that nobody gave.

    ``tasks`` in the place of ``task`` names several, each a table of its own ``task``, ``targets``
    (``y_key`` in archives) and whatever else concerns one task alone, such as
    ``{"state": {"task": "binary", "targets": "state"}, "hours": {"task": "regression", ...}}``.

    Args:
        name: of the client.
        task: "classification", "binary", "multilabel" or "regression".
        train: file of the training rows.
        classes: how many, 2 or more; labels 0 .. classes - 1 then keep their numbers.
        validation, test: files of held-out rows, instead of the shares.
        inputs: input columns (by default all others); with images, the column of paths (by default
            "path").
        targets: the target column or columns.
        images: folder of the images that the table names.
        size: images become size x size pixels.
        color: "grey" or "rgb".
        x_key, y_key: names of the arrays in an .npz archive.
        validation_share, test_share: parts of the rows that are held out, each from 0 to 1.
        standardize: to mean 0 and deviation 1: true for both sides, "inputs" or "targets" for one.
        on_bad: "error" stops at a row that cannot be used, "drop" leaves it out.
        seed: draws the held-out rows; the run's own unless given.
        base: folder where relative paths start; a config's own by default.
        task_name: a name that clients of one task have in common.
        class_weights: of a classification: "balanced", or a number for each class.
        pos_weight: of a binary or multilabel task: "balanced", or what a 1 counts.
        positive: of a binary task: the label that is 1.
        metrics: beside the usual ones, by name.
        tasks: several tasks by name, each a table of its own settings.
    """
    given = {"class_weights": class_weights, "pos_weight": pos_weight, "metrics": metrics}
    kind = "" if task is None and tasks is not None else choose(str(task), KINDS, "task")
    source = FileSource(
        images=None if images is None else _path(base, images, "images"),
        inputs=None if inputs is None else _names(inputs),
        targets=_names(targets or ()),
        labels=kind in COUNTED,
        size=size,
        color=color,
        x_key=x_key,
        y_key=y_key,
        on_bad=on_bad,
    )
    files = {"train": train, "validation": validation, "test": test}
    shares = {"validation_share": validation_share, "test_share": test_share}
    options = {**shares, "standardize": standardize, "seed": seed}
    paths = {split: _path(base, file, split) for split, file in files.items() if file is not None}
    if tasks is not None:
        from fedgradnorm.data._files.several_targets import load_several

        single = {"task": task, "targets": targets, "classes": classes, "task_name": task_name}
        return load_several(
            name, source, paths, tasks, options, {**single, **given, "positive": positive}
        )
    plan = TaskPlan(kind, task_name, classes, positive, given)
    plan.check(name)
    return _load(name, source, paths, plan, options)


@dataclass(frozen=True)
class FileSource:
    """How a client's files are to be read, whatever their format."""

    targets: tuple[str, ...]
    labels: bool
    inputs: tuple[str, ...] | None = None
    images: Path | None = None
    size: int = 40
    color: Color = "grey"
    x_key: str = "x"
    y_key: str = "y"
    on_bad: OnBad = "error"
    aside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        choose(self.on_bad, ("error", "drop"), "on_bad")

    def read(self, path: Path) -> FileRows:
        """The rows of one file, in the format its ending says."""
        if not is_file(path):
            raise DataError(f"{path}: no such file; check the path")
        bad: BadRows[int] = BadRows(self.on_bad, str(path))
        suffix = path.suffix.lower()
        if suffix == ".npz":
            if self.images or self.inputs or self.targets:
                raise ConfigError(
                    f"{path}: an .npz file has no columns or image paths; leave out inputs, "
                    "targets and images, and use x_key and y_key"
                )
            return rows_from_npz(path, self.x_key, self.y_key, self.labels, bad)
        if suffix not in TABLE_SUFFIXES:
            raise DataError(
                f"{path}: unknown ending {suffix!r}; use one of {', '.join(TABLE_SUFFIXES)}, .npz"
            )
        check_columns(self.inputs, self.targets, self.labels)
        if self.images is None:
            return rows_from_table(
                path, self.inputs, self.targets, self.labels, bad, aside=self.aside
            )
        return rows_from_images(
            path,
            self.images,
            self._path_column(),
            self.targets,
            self.labels,
            bad,
            size=self.size,
            color=self.color,
        )

    def _path_column(self) -> str:
        columns = self.inputs or ("path",)
        if len(columns) > 1:
            raise ConfigError(f"with images, inputs names the one column of paths, not {columns}")
        return columns[0]


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _path(base: FilePath | None, path: FilePath, what: str) -> Path:
    return user_path("." if base is None else base, "base") / user_path(path, what)


def _load(
    name: str,
    source: FileSource,
    files: Mapping[str, Path],
    plan: TaskPlan,
    options: Mapping[str, Any],
) -> Loaded:
    """Read every split, turn labels into class numbers, and make the client."""
    splits = read_splits(source, files)
    known = label_map(splits, plan) if source.labels else None
    arrays = {split: usable_rows(rows, known) for split, rows in splits.items()}
    tell_dropped(name, splits.values())
    tell_unlabelled(name, [y for _, y in arrays.values()])
    task = plan.make(len(known.names) if known else arrays["train"][1].shape[-1])
    held = {"validation": arrays.get("validation"), "test": arrays.get("test"), **options}
    loaded = client_from_arrays(name, task, arrays["train"], **held)
    names, columns = known.names if known else None, splits["train"].inputs
    if plan.kind == "multilabel" and source.targets:
        names = source.targets
    client = replace(_single_precision(loaded.client), labels=names, columns=columns)
    tell_untrained(client)
    dropped = {rows.bad.source: tuple(sorted(rows.bad.reasons)) for rows in splits.values()}
    kept = {file: rows for file, rows in dropped.items() if rows}
    return Loaded(client, loaded.scaling, names, kept)


def read_splits(source: FileSource, files: Mapping[str, Path]) -> dict[str, FileRows]:
    splits: dict[str, FileRows] = {}
    for split, file in files.items():
        splits[split] = source.read(file)
        # The training file decides the columns and their order; the others must have them too.
        if splits[split].inputs is not None:
            source = replace(source, inputs=splits[split].inputs)
    return splits


def label_map(splits: Mapping[str, FileRows], plan: TaskPlan) -> LabelMap:
    """The classes: the training labels, and after them those that only other splits have.

    Under ``on_bad="drop"`` a label without training rows is a class too. Its rows could be read,
    and a score that left them out would be too good.
    """
    train, classes = splits["train"], 2 if plan.kind == "binary" else plan.classes
    if len(train.good()) == 0:
        raise _no_rows(train)
    labels = [str(train.y[i]) for i in train.good() if train.y[i]]
    if not labels:
        raise DataError(f"{train.bad.source}: no row has a label; check the column of targets")
    known = LabelMap.fit(labels, classes, train.bad.source, plan.kind)
    if plan.positive is not None:
        known = known.ending_with(str(plan.positive), train.bad.source)
    for rows in splits.values():
        labels = [str(label) for label in rows.y]
        codes = known.codes(labels)
        unseen = [int(i) for i in rows.good() if labels[i] and codes[i] is None]
        if unseen and (rows.bad.on_bad == "error" or classes is not None):
            raise _unseen(rows, unseen[0], plan)
        known = known.extended([labels[i] for i in unseen])
    return known


def _unseen(rows: FileRows, index: int, plan: TaskPlan) -> DataError:
    way_out = "set on_bad='drop' to keep such rows, which then count as wrong"
    if plan.kind == "binary":
        way_out = "use task='classification'"
    elif plan.classes is not None:
        way_out = f"leave classes = {plan.classes} out"
    return DataError(
        f"{rows.where(index)}: label {shown(rows.y[index])} does not occur in the training data; "
        f"correct it, or {way_out}"
    )


def usable_rows(rows: FileRows, known: LabelMap | None) -> Arrays:
    """The rows without the bad ones, labels as class numbers; NaN where there is none."""
    good = rows.good()
    if len(good) == 0:
        raise _no_rows(rows)
    if known is None:
        return rows.x[good], np.asarray(rows.y)[good]
    codes = known.codes([str(rows.y[i]) for i in good])
    if None not in codes:
        return rows.x[good], np.array(codes, dtype=np.int64)
    return rows.x[good], np.array([np.nan if code is None else code for code in codes])


def tell_dropped(name: str, splits: Collection[FileRows]) -> None:
    """One line in the log about all rows that were left out of the client's files."""
    reasons = [
        f"{rows.bad.reasons[row]} [{Path(rows.bad.source).name}]"
        for rows in splits
        for row in sorted(rows.bad.reasons)
    ]
    total = sum(len(rows.rows) for rows in splits)
    what = f"client {name!r}: dropped {len(reasons)} of {total} rows"
    log_dropped(what, reasons, ", and by number in Loaded.dropped")


def tell_untrained(client: Client) -> None:
    """Name the classes that are to be predicted, but have no training rows."""
    if client.labels is None or client.task.classes is None:
        return
    pairs = [pair for split in SPLITS[1:] if (pair := getattr(client, split)) is not None]
    labels = client.task.labels_of
    held = Counter(code for pair in pairs for code in labels(torch.as_tensor(pair[1])).tolist())
    unseen = sorted(set(held) - set(labels(torch.as_tensor(client.train[1])).tolist()))
    if unseen:
        log.warning(
            "client %r: no training rows for label %s%s; the %d held-out rows with it count as "
            "wrong",
            *(client.name, ", ".join(shown(client.labels[code]) for code in unseen[:SHOWN])),
            *(", ..." if len(unseen) > SHOWN else "", sum(held[code] for code in unseen)),
        )


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
