"""A client: who it is, its task or tasks and its data, checked once."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import torch
from torch import Tensor, nn

from fedgradnorm._checked_splits import checked_split, fingerprint, task_rows
from fedgradnorm._checks import explained, shown
from fedgradnorm._columns import check_names, check_order, is_frame, names_of, picked
from fedgradnorm._errors import ConfigError, DataError, did_you_mean
from fedgradnorm._privacy.terms import Privacy, terms_of_client
from fedgradnorm.models._given_inputs import as_inputs, form_words
from fedgradnorm.models._input_rows import Inputs, row_form
from fedgradnorm.models._streamed import (
    Streamed,
    StreamedTargets,
    Targets,
    as_feed,
    changed,
    some_targets,
)
from fedgradnorm.tasks._labels import names_for
from fedgradnorm.tasks._targets import has_gaps, labelled
from fedgradnorm.tasks._task import Task, are_numbers, described_task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.utils.data import Dataset

    from fedgradnorm.data._files.encoding import Encoding
    from fedgradnorm.models._streamed import Feed

    Array = NDArray[Any] | Tensor
    Split = tuple[Any, Any]
    Given = tuple[Any, Array] | Dataset[Any] | Feed
    Splits = tuple[Any, Mapping[str, Array]]


class Scaler(Protocol):
    """Turns raw inputs into what the client was trained on, and its outputs back."""

    def scale_inputs(self, x: Tensor) -> Tensor:
        """Raw inputs as the network saw them."""

    def restore_targets(self, output: Tensor) -> Tensor:
        """Outputs in the units of the raw targets."""

    def state_dict(self) -> dict[str, Tensor]:
        """The scaler as tensors, saved with the run."""


log = logging.getLogger("fedgradnorm")

SPLITS = ("train", "validation", "test")
_NONE: Any = None  # what a client with several tasks has as its one task


K = TypeVar("K", bound=type)


def _keywords_explained(kind: K) -> K:
    made: Any = kind
    known = [one.name for one in fields(made)]
    made.__init__ = explained(
        lambda name: DataError(
            f"Client() takes no {name!r}{did_you_mean(name, known)} (one of: {', '.join(known)})"
        )
    )(made.__init__)
    return kind


@_keywords_explained
@dataclass(frozen=True, repr=False, eq=False)  # a client is itself: data is not compared
class Client:
    """One participant: a name, a task, and its own data.

    Each split (``train``, ``test``, ``validation``) is a pair ``(x, y)`` of arrays or tensors with
    one row per example. The data is checked when you create the client. The targets ``y`` are

    - for classification, labels ``0 .. classes - 1`` (for binary 0 and 1), or texts;
    - for regression, one row of ``outputs`` numbers;
    - for multilabel, one row of zeros and ones;
    - for a task with a shape, one of these at each position.

    NaN or None in ``y`` is a missing label: it counts in no loss and no metric, and a client with
    one task trains on its labeled examples only.

    The inputs ``x`` may also be a dict of arrays, which the network receives as keyword arguments,
    or :func:`fedgradnorm.sequences` of different lengths, which it receives padded and with a mask.
    For data larger than memory, pass a map-style ``torch.utils.data.Dataset`` of pairs, or a pair
    whose ``x`` is an ``np.memmap`` or :func:`fedgradnorm.data.stream`; examples are then read and
    checked batch by batch.

    To give a client several tasks, pass ``tasks``, a dict of tasks by name. Then ``y`` is a dict of
    targets with the same names, and so are ``head``, ``labels`` and ``scaling`` if you pass them.
    Training treats each task as a client called ``name/task`` (see :attr:`rows`), and all tasks are
    trained on the same batches.

    Args:
        name: the client's name, unique among the clients of a run.
        task: what it learns, such as ``fgn.classification(3)`` or ``fgn.regression(1)``.
        train, test, validation: its data; only training data is required.
        head: a module from the network's features to the task's outputs; one linear layer by
            default.
        scaling: the scaling already applied to the data, so that predictions take raw values.
        labels: the names of the classes.
        columns: the names of the inputs, by default those of the training DataFrame; other
            DataFrames are read by these names. Clients that share a network need the same columns;
            if the order differs, training uses that of the first client.
        encoding: how the inputs were made from raw columns, if they were.
        tasks: several tasks by name, instead of ``task``.
        of: the client of which this is one of several tasks; set internally.
        stem: private layers in front of the shared network, for a client whose inputs have another
            form. They are trained together with the head.
        privacy: differential privacy of the training examples, :class:`fedgradnorm.Privacy`.
        given_columns: the client's own order of columns, if training changed it; set internally.
        labels_learned: whether the classes were read from the training data; set internally.

    >>> import numpy as np
    >>> from fedgradnorm import Client, classification, regression
    >>> x = np.random.default_rng(0).normal(size=(8, 4))
    >>> Client("a", classification(2), train=(x, np.arange(8) % 2)).size
    8
    >>> tasks = {"odd": classification(2), "sum": regression(1)}
    >>> both = Client("b", tasks=tasks, train=(x, {"odd": np.arange(8) % 2, "sum": x.sum(1)}))
    >>> [row.name for row in both.rows]
    ['b/odd', 'b/sum']
    """

    name: str
    task: Task = _NONE
    train: Split = _NONE
    test: Split | None = None
    validation: Split | None = None
    head: nn.Module | None = None
    scaling: Scaler | None = None
    labels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    encoding: Encoding | None = None
    tasks: Mapping[str, Task] | None = None
    of: str | None = None
    stem: nn.Module | None = None
    privacy: Privacy | None = None
    given_columns: tuple[str, ...] | None = None
    labels_learned: bool = False  # whether the list of classes was read from its training data

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            task: Task,
            train: Given,
            test: Given | None = None,
            validation: Given | None = None,
            head: nn.Module | None = None,
            scaling: Scaler | None = None,
            labels: tuple[str, ...] | None = None,
            columns: tuple[str, ...] | None = None,
            encoding: Encoding | None = None,
            *,
            of: str | None = None,
            stem: nn.Module | None = None,
            privacy: Privacy | Mapping[str, Any] | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            *,
            tasks: Mapping[str, Task],
            train: Splits,
            test: Splits | None = None,
            validation: Splits | None = None,
            head: Mapping[str, nn.Module] | None = None,
            scaling: Scaler | Mapping[str, Scaler] | None = None,
            labels: Mapping[str, tuple[str, ...]] | None = None,
            columns: tuple[str, ...] | None = None,
            stem: nn.Module | None = None,
            encoding: Encoding | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **options: Any) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise DataError(f"a client's name must be a non-empty text, not {self.name!r}")
        try:
            self.name.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise DataError(
                f"client {self.name!r}: UTF-8 cannot write character {error.start + 1} of the "
                "name; give it another name"
            ) from error
        given = self.train
        framed = isinstance(given, (tuple, list)) and bool(given) and is_frame(given[0])
        if self.columns is None and framed:
            columns = names_of(given[0], f"client {self.name!r}, train data")
            object.__setattr__(self, "columns", columns)
        terms = terms_of_client(self.name, self.privacy, several=self.tasks is not None)
        object.__setattr__(self, "privacy", terms)
        if self.tasks is not None:
            object.__setattr__(self, "_rows", _several(self))
            return
        if not isinstance(self.task, Task):
            raise DataError(
                f"client {self.name!r}: task must be made by a function such as "
                f"fgn.regression(1) or fgn.classification(3), not {shown(self.task)}"
            )
        if self.labels is None:
            object.__setattr__(self, "labels", _named_labels(self))
            learned = _named_labels(self) != self.task.labels
            object.__setattr__(self, "labels_learned", learned)
        for split in SPLITS:
            pair = getattr(self, split)
            if pair is not None or split == "train":
                object.__setattr__(self, split, checked_split(self, split, pair))
        _check_rows(self)
        if self.size < (self.task.classes or 0) and not self.task.shape:
            raise DataError(
                f"client {self.name!r}: {self.task.classes} classes but only {self.size} training "
                "rows; give it more data or fewer classes"
            )
        count = self.task.form.names(self.task.outputs)
        if self.labels is not None and not self.task.has_real_targets and len(self.labels) != count:
            raise DataError(
                f"client {self.name!r}: {len(self.labels)} labels for {self.task.words()}; give "
                "a name for each"
            )
        object.__setattr__(self, "task", _learned(self))

    def __repr__(self) -> str:
        x = self.train[0]
        sizes = [f"{len(pair[0])} {s}" for s in SPLITS if (pair := getattr(self, s)) is not None]
        if self.tasks is not None:
            x = self.rows[0].train[0]
            task = ", ".join(f"{row.task_name}: {row.task.words()}" for row in self.rows)
        else:
            named = f"{self.task.name!r}, " if self.task.name else ""
            task = f"{named}{self.task.kind}, {self.task.words()}"
        form = "x".join(map(str, row)) if isinstance(row := row_form(x), list) else form_words(row)
        return f"Client({self.name!r}: {task}; {' + '.join(sizes)} examples of shape {form})"

    @property
    def rows(self) -> tuple[Client, ...]:
        """One client per task: the client itself, or one for each of its several tasks."""
        if self.tasks is None:
            return (self,)
        found: tuple[Client, ...] = vars(self)["_rows"]
        return found

    @property
    def owner(self) -> str:
        """The participant's name, also if this is one of its several tasks."""
        return self.of or self.name

    @cached_property
    def size(self) -> int:
        """Number of labeled training examples."""
        y = self.train[1]
        if isinstance(y, StreamedTargets):
            return len(y)
        y = torch.as_tensor(y)
        return int(labelled(y).sum()) if has_gaps(y) else len(y)

    @cached_property
    def target_size(self) -> float:
        """How large its training targets are, where they are numbers: root of the mean square."""
        return float(some_targets(self.train[1]).double().square().nanmean().sqrt())

    @cached_property
    def target_spread(self) -> float:
        """How far its training targets are from their mean: root of the mean square."""
        y = some_targets(self.train[1]).double()
        return float((y - y.nanmean(dim=0)).square().nanmean().sqrt())

    @property
    def drawn(self) -> int:
        """Number of training rows that batches are drawn from: see :meth:`learns_from`."""
        return len(self.train[0]) if self.of else self.size

    def learns_from(self) -> tuple[Inputs, Targets]:
        """The training rows that batches are drawn from.

        A client with one task has its labeled rows here. Several tasks read the same batches,
        so there each leaves out what it has no label for.
        """
        if isinstance(self.train[1], StreamedTargets):  # each of its rows has a label
            return self.train[0], self.train[1]
        x, y = self.train[0], torch.as_tensor(self.train[1])
        if self.of or self.size == len(y):
            return x, y
        there = labelled(y)
        return x[there], self.task.whole(y[there])

    @property
    def task_name(self) -> str:
        """The task's name; without one the client's own, or that among its several tasks."""
        own = self.name if self.of is None else self.name.removeprefix(f"{self.of}/")
        return self.task.name or own

    @property
    def shared_task(self) -> str:
        """The task it shares with others under ``heads="task"`` and ``weight_per="task"``.

        That is the task's name. Without one it is a description of kind, outputs and label names,
        so clients that agree in these share a task.
        """
        if self.task.name or self.of:
            return self.task_name
        task = self.task
        return described_task(task.kind, task.outputs, task.shape, self.label_names)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Its labels, where they say more than class numbers do; files call those "0", "1", ..."""
        return None if self.labels is None or are_numbers(self.labels) else self.labels

    def fingerprint(self) -> str:
        """A hash of all splits: kinds of numbers, shapes and values, in the order of columns given.

        Stored with every run, so that a resumed run continues with the same data, and so that only
        runs on the same data are compared. Of rows that are read batch by batch it is their number
        and the values of 256 of them, which are always the same ones.
        """
        given = self if self.given_columns is None else in_column_order(self, self.given_columns)
        return fingerprint({split: getattr(given, split) or () for split in SPLITS})


def in_column_order(
    client: Client, columns: Sequence[str], moved: dict[int, tuple[Any, Any]] | None = None
) -> Client:
    """The client with its input columns in this order, and its scaling and encoding with them.

    ``moved`` remembers inputs by id, so that those that clients hold together stay one.
    """
    own = client.columns
    if own is None or own == tuple(columns):
        return client
    index = torch.tensor([own.index(name) for name in columns])
    moved = {} if moved is None else moved
    found = copy.copy(client)
    changes: dict[str, Any] = {"columns": tuple(columns)}
    changes["given_columns"] = client.given_columns or own
    for split in SPLITS:
        if (pair := getattr(client, split)) is not None:
            x, y = pair
            if isinstance(x, Streamed):
                changes[split] = changed(x, y, lambda part: part[:, index], None)
                continue
            if id(x) not in moved:
                moved[id(x)] = x, x[:, index]
            changes[split] = moved[id(x)][1], y
    for part, order in (("scaling", index), ("encoding", columns)):
        if (one := getattr(client, part)) is not None:
            if not hasattr(one, "in_order"):  # a custom class: we cannot know what goes by column
                raise DataError(
                    f"client {client.name!r}: its columns are not in the order of the clients that "
                    f"it shares a network with, and its {part} has no method in_order; give it the "
                    f"columns in the order {', '.join(columns)}"
                )
            changes[part] = one.in_order(order)
    for key, value in changes.items():
        object.__setattr__(found, key, value)
    return found


def _several(client: Client) -> tuple[Client, ...]:
    """A client for each of several tasks, which share the same inputs."""
    if vars(client)["task"] is not None or client.of is not None:
        raise DataError(f"client {client.name!r}: task and tasks are both given; choose one")
    splits = {split: getattr(client, split) for split in SPLITS}
    for split, pair in splits.items():
        if pair is not None and isinstance(pair, (tuple, list)) and len(pair) == 2:
            where = f"client {client.name!r}, {split} data"
            feed = as_feed(pair[0], where, pairs=False)
            for y in pair[1].values() if isinstance(pair[1], Mapping) else ():
                check_order(pair[0], y, where)
            x = picked(pair[0], client.columns, where) if feed is None else Streamed(feed)
            splits[split] = as_inputs(where, x), pair[1]
    given = {key: getattr(client, key) for key in ("head", "scaling", "labels")}
    assert client.tasks is not None
    return tuple(
        Client(
            **parts,
            columns=client.columns,
            encoding=client.encoding,
            of=client.name,
            stem=client.stem,
        )
        for parts in task_rows(client.name, client.tasks, splits, given)
    )


def _learned(client: Client) -> Task:
    y = client.learns_from()[1]
    if isinstance(y, StreamedTargets):
        if not client.task.class_weights():
            return client.task
        log.info("client %r: reading all %d items once, to weigh classes", client.name, len(y))
        y = y.whole()
    try:
        return client.task.learned(y)
    except ConfigError as error:
        raise ConfigError(f"client {client.name!r}, task {client.task_name!r}: {error}") from error


def _named_labels(client: Client) -> tuple[str, ...] | None:
    """The names of the classes: those that the task lists, or the texts of the training targets."""
    pair = client.train
    y = pair[1] if isinstance(pair, (tuple, list)) and len(pair) == 2 else None
    y = None if isinstance(y, StreamedTargets) else y
    return names_for(client.task, y, f"client {client.name!r}, train data")


def _check_rows(client: Client) -> None:
    """A DataError unless the rows of all splits look alike, and ``columns`` names their parts."""
    expected = row_form(client.train[0])
    if client.columns is not None:
        shape = expected if isinstance(expected, list) else ()
        names = check_names(client.columns, shape, f"client {client.name!r}")
        object.__setattr__(client, "columns", names)
    for split in SPLITS[1:]:
        pair = getattr(client, split)
        if pair is not None and (form := row_form(pair[0])) != expected:
            raise DataError(
                f"client {client.name!r}: a row of {split} x has shape "
                f"{form_words(form)}, a training row {form_words(expected)}; they must be equal"
            )
