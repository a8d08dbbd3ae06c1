"""What one client learns: its loss and its metrics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._kind import KINDS, Kind
from fedgradnorm.tasks._measures import (
    LossFunction,
    Metric,
    ModuleLoss,
    WeightedLoss,
    by_number,
    by_row,
    own_loss_problem,
)
from fedgradnorm.tasks._named_metrics import (
    check_metrics,
    is_ours,
    measured,
    one_number,
    shown_kind,
)
from fedgradnorm.tasks._targets import (
    Shape,
    all_labelled,
    checked_shape,
    has_gaps,
    labelled,
    laid_out,
    mean_of_labelled,
    outputs_first,
    positions,
    without_gaps,
)

if TYPE_CHECKING:
    from fedgradnorm._client import Scaler

Scores = dict[str, float]


@dataclass(frozen=True)
class Task:
    """A client's task.

    Make one with :func:`classification`, :func:`binary`, :func:`multilabel`, :func:`ordinal` or
    :func:`regression`, or, of a kind of your own, with :func:`of_kind`.

    ``loss_function`` gives one loss per row, or one number for all rows that it is given; a
    client's loss F_i is ``loss_scale`` times the mean over its rows, or times that number.
    ``name`` lets several clients share a task (see ``weight_per``, ``heads`` in ``train``).
    ``shape`` is that of a row's target, where every position has one. ``gaps`` says that some
    training targets are NaN: these labels are missing, and the loss leaves them out. ``judged_by``
    is the metric that tables show, where one was asked for by name. ``labels`` are the names of the
    classes, in the order of their numbers, where they are listed.
    """

    kind: str
    outputs: int
    loss_function: LossFunction
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    loss_scale: float = 1.0
    name: str | None = None
    shape: Shape = ()
    gaps: bool = False
    judged_by: str | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        KINDS.find(self.kind)
        least = self.form.least
        whole = isinstance(self.outputs, int) and not isinstance(self.outputs, bool)
        if not whole or self.outputs < least:
            given: Any = self.outputs
            listed = isinstance(given, list | tuple)
            way = "" if whole else "; give a whole number"
            way = f"; names are given as labels={given!r}" if listed else way
            raise ConfigError(
                f"a {self.kind} task needs at least {least} outputs, not {given!r}{way}"
            )
        if not _is_number(self.loss_scale) or not 0 < self.loss_scale < float("inf"):
            raise ConfigError(f"loss_scale must be a positive number, not {self.loss_scale!r}")
        if not callable(self.loss_function):
            raise ConfigError(
                "loss must be a function (outputs, targets) -> one loss per row, or one number, "
                f"not {self.loss_function!r}"
            )
        if isinstance(self.loss_function, nn.Module):
            object.__setattr__(self, "loss_function", ModuleLoss(self.loss_function))
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigError(f"a task's name must be a text, not {self.name!r}")
        object.__setattr__(self, "shape", checked_shape(self.shape))
        check_metrics(self.metrics)

    def __repr__(self) -> str:
        named = "" if self.name is None else f"{self.name!r}, "
        return f"Task({named}{self.kind}, {self.words()})"

    @property
    def form(self) -> Kind:
        """What answers for the task's kind."""
        return KINDS[self.kind]

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss is not one of ours, and so may be wrong."""
        ours = KINDS.is_builtin(self.kind) and self.loss_function == self.form.loss
        return not ours and not isinstance(self.loss_function, WeightedLoss)

    @property
    def measures_anywhere(self) -> bool:
        """Whether loss and metrics are ours: those of others may hold tensors of one device."""
        return not self.has_own_loss and all(map(is_ours, self.metrics.values()))

    @property
    def knows_baseline(self) -> bool:
        """Whether :meth:`baseline` answers for this loss, of which a kind knows its usual one."""
        usual = self.loss_function == self.form.loss or isinstance(self.loss_function, WeightedLoss)
        return usual and type(self.form).baseline is not Kind.baseline

    @property
    def loss_name(self) -> str:
        """What the loss is called, where it is the usual one of its kind; else "loss"."""
        return self.form.loss_name if self.loss_function == self.form.loss else "loss"

    @property
    def classes(self) -> int | None:
        """How many classes there are, where a row has one of several; else None."""
        return self.form.classes(self.outputs)

    @property
    def has_real_targets(self) -> bool:
        """Whether targets are numbers of any size, which can be standardized."""
        return self.form.real

    @property
    def has_right_answers(self) -> bool:
        """Whether a row is right or wrong, or in part, so that there is an accuracy."""
        return type(self.form).right is not Kind.right

    @property
    def is_plain(self) -> bool:
        """Whether every row has all of its targets, and no shape: what closed forms know."""
        return not self.gaps and not self.shape

    def target(self, where: str, y: Tensor) -> Tensor:
        """Targets as the loss takes them, or a DataError that begins with ``where``."""
        given, y = y, laid_out(where, y, self.outputs, self.shape, self.form.counted)
        found = self.form.target(where, y, self.outputs)
        if found.is_set_to(given):  # itself, so that clients given one test set hold one
            found = given
        if self.has_own_loss and (problem := own_loss_problem(found, self.form.counted)):
            raise ConfigError(f"{where}: {problem}")
        return found

    def learned(self, target: Tensor) -> Task:
        """The task for a client that learns from these targets: weights of classes, and gaps."""
        task, loss = self.for_targets(target), self.loss_function
        if isinstance(loss, WeightedLoss):
            task = replace(task, loss_function=loss.learned(target))
        return task

    def for_targets(self, target: Tensor) -> Task:
        """The task that knows whether some of these targets are missing."""
        gaps = has_gaps(target)
        return self if gaps == self.gaps else replace(self, gaps=gaps)

    def labels_of(self, target: Tensor) -> Tensor:
        """The labels that are there: classes [labels], else [labels, outputs] with their gaps."""
        if self.form.counted:
            flat = target.reshape(-1)
            there = flat[~flat.isnan()] if flat.is_floating_point() else flat
            return there.to(torch.int64)
        rows = positions(target)
        return rows[labelled(rows)] if has_gaps(rows) else rows

    def class_weights(self) -> dict[str, Any]:
        """The weights of classes as they were ``given`` and are ``used``; empty without any."""
        loss = self.loss_function
        if not isinstance(loss, WeightedLoss):
            return {}
        given = loss.given if isinstance(loss.given, str) else list(loss.given)
        return {"given": given, "used": [list(row) for row in loss.weights or ()]}

    def baseline(self, y: Tensor) -> Tensor:
        """The outputs with the least usual loss that are the same for all rows."""
        loss = self.loss_function
        weights = loss.table(torch.zeros(1).double()) if isinstance(loss, WeightedLoss) else None
        return self.form.baseline(self.labels_of(y), self.outputs, weights)

    def baseline_scores(self, learned: Tensor, y: Tensor, scaling: Scaler | None) -> Scores:
        """Loss and metrics of the answer that is the same for all rows, learned on some targets.

        That is the classes' shares, so the most frequent class, or the mean. Empty where a kind or
        a metric of others has no answer. The loss is free of its scale, and classes of weights.
        """
        plain = replace(self, loss_scale=1.0)
        like = y if y.is_floating_point() else torch.zeros(1)
        try:
            constant = self.form.baseline(self.labels_of(learned), self.outputs, None).to(like)
            output = constant.reshape(1, -1, *[1] * len(self.shape))
            found = plain.measure(output.expand(len(y), self.outputs, *self.shape), y, scaling)
        except ConfigError:
            return {}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:
        """The share of each row that is right; None where there is no right and wrong."""
        if not self.shape:
            return self.form.right(output, target)
        flat = target.reshape(-1) if self.form.counted else positions(target)
        right = self.form.right(positions(self.outputs_of(output)), flat)
        if right is None:
            return None
        there = labelled(flat).view(len(target), -1)
        return mean_of_labelled(right.view(len(target), -1), there)

    def words(self) -> str:
        """What a row's target is, such as "3 classes"."""
        at = f" at {'x'.join(map(str, self.shape))} positions" if self.shape else ""
        return self.form.words(self.outputs) + at

    def shares(self, y: Tensor, names: Sequence[str] | None) -> str:
        """Training targets in a few words: how frequent each class is, or mean and deviation."""
        return self.form.shares(self.labels_of(y), self.outputs, names)

    def outputs_of(self, output: Tensor) -> Tensor:
        """A head's outputs as the loss takes them: ``[rows, outputs, *shape]``."""
        if not self.shape:
            return output
        found = outputs_first(output, self.outputs, self.shape)
        if found is None:
            raise ConfigError(f"outputs of shape {tuple(output.shape[1:])} do not fit the task")
        return found

    def row_losses(self, output: Tensor, target: Tensor, table: Tensor | None = None) -> Tensor:
        """One loss per row, without the scale, or one number for all of them.

        Where some targets are missing, a row without any has loss 0. ``table`` are weights of
        classes, [rows, groups, classes], where rows of several clients are in one call.
        """
        loss = self.loss_function
        if self.is_plain:
            if table is None or not isinstance(loss, WeightedLoss):
                return loss(output, target)
            return loss.weighed(output, target, table)
        output = self.outputs_of(output)
        if self.has_own_loss:
            if self.gaps:
                return by_row(self.loss_function, output, target, self.form.counted)
            found = self.loss_function(output, target)
            return found.flatten(1).mean(dim=1) if found.ndim > 1 else found
        return by_number(loss, output, target, table, self.form.counted)

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per row, or the one number that the loss gives for all of them."""
        return self.loss_scale * self.row_losses(output, target)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """F_i: the mean loss over the labeled rows."""
        losses = self.losses(output, target)
        if not self.gaps or losses.ndim == 0:
            return losses.mean()
        return mean_of_labelled(losses, labelled(target))

    def joins_rows(self, target: Tensor) -> bool:
        """Whether the loss gives one number for all rows, tried on the first of ``target``.

        Only rows of one client may then be in one call.
        """
        if not self.has_own_loss:
            return False
        some = target[labelled(target)][:3].cpu()
        shape = (len(some), self.outputs, *self.shape)
        output = torch.zeros(shape, dtype=torch.get_default_dtype())
        some = self.whole(without_gaps(some))
        some = some.to(output) if some.is_floating_point() else some
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return self.loss_function(output, some).ndim == 0

    def whole(self, target: Tensor) -> Tensor:
        """Targets without gaps as they are where nobody has any."""
        return target.to(torch.int64) if self.form.counted and not has_gaps(target) else target

    def check_loss(self, output: Tensor, target: Tensor) -> None:
        """A ConfigError unless the loss gives one number, or one a row; ``output`` is of some."""
        rows = len(output)
        try:
            losses = self.loss_function(self.outputs_of(output), self.whole(without_gaps(target)))
        except Exception as error:  # code of others may raise anything
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"its loss fails: {reason}; correct the loss") from error
        fitting = ((), (rows,), (rows, *self.shape))
        if not isinstance(losses, Tensor) or tuple(losses.shape) not in fitting:
            raise ConfigError(
                f"its loss returns {shown_kind(losses)} for {rows} rows; it must return one number "
                'a row (use reduction="none", and .mean(dim=1) where a row has several), or their '
                "mean"
            )
        if self.gaps and losses.ndim < 1 + bool(self.shape):
            where = "position" if self.shape else "row"
            raise ConfigError(
                f"some labels are missing, and its loss returns {shown_kind(losses)}; it must "
                f'return one number a {where} (use reduction="none")'
            )

    def measure(
        self, output: Tensor, target: Tensor, scaling: Scaler | None = None
    ) -> dict[str, float]:
        """The loss and every metric of a split; a ConfigError names the one that fails.

        Rows without a label count for nothing.
        """
        if not all_labelled(target):
            there = labelled(target)
            output, target = output[there], target[there]
        task, target = self.for_targets(target), self.whole(target)
        loss = one_number("loss", task.loss(output, target))
        return {"loss": loss, **measured(task, task.outputs_of(output), target, scaling)}


SHOWN, LONGEST = 5, 80
"""Labels and letters that the description of a task has at most."""


def described_task(
    kind: str, outputs: int, shape: Sequence[int], labels: Sequence[str] | None
) -> str:
    """What stands for the name of a task that has none: its kind, its outputs and its labels.

    >>> described_task("classification", 2, (), ("cat", "dog"))
    'classification of cat, dog'
    >>> described_task("regression", 2, (), None)
    'regression with 2 outputs'
    """
    at = f" at {'x'.join(map(str, shape))} positions" if shape else ""
    if labels is None or are_numbers(labels):
        return f"{kind} with {outputs} output{'s' * (outputs > 1)}{at}"
    text = f"{kind} of {', '.join(map(str, labels))}{at}"
    if len(labels) <= SHOWN and len(text) <= LONGEST:
        return text
    letters = hashlib.blake2b(repr(tuple(labels)).encode(), digest_size=4).hexdigest()
    return f"{kind} of {len(labels)} labels{at} ({letters})"


def are_numbers(labels: Sequence[str]) -> bool:
    return [str(label) for label in labels] == [str(number) for number in range(len(labels))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
