"""What every partitioner is, and the checks they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedgradnorm._errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Rows = NDArray[np.int64]
    Labels = NDArray[Any] | Tensor | Sequence[Any]


@dataclass(frozen=True)
class Partitioner:
    """Base: ``split(labels_or_n, seed)`` and ``describe()``."""

    name: ClassVar[str] = ""

    def split(self, labels_or_n: Labels | int, seed: int) -> list[Rows]:
        """Disjoint, sorted row numbers of each part, from a label per row or their number."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The settings as plain values; ``partition.partitioner`` is the inverse."""
        settings = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }
        return {"name": self.name, **settings}


def whole(name: str, value: object) -> None:
    """Refuse a setting that is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")


def row_count(labels_or_n: Labels | int) -> int:
    """How many rows there are, from their labels or their number."""
    if isinstance(labels_or_n, (int, np.integer)):
        if labels_or_n < 1:
            raise DataError(f"there are {labels_or_n} rows; nothing to share out")
        return int(labels_or_n)
    return len(labels_or_n)


def class_labels(labels_or_n: Labels | int, who: str) -> NDArray[Any]:
    """One class label per row, or a DataError where there are none to go by."""
    if isinstance(labels_or_n, (int, np.integer)):
        raise DataError(
            f"{who} shares out by class and needs a label per row; use Iid, Size or Linear"
        )
    labels = np.asarray(labels_or_n)
    if labels.dtype.kind == "O":
        labels = labels.astype(str)
    if labels.ndim != 1 or len(labels) == 0:
        raise DataError(f"{who} needs one label per row, not an array of shape {labels.shape}")
    if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == np.rint(labels))).all():
        raise DataError(f"{who} needs class labels, not real numbers; use Iid, Size or Linear")
    return labels


def sorted_parts(parts: Sequence[NDArray[Any]]) -> list[Rows]:
    """Each part's rows in ascending order, so that neighbours on disk stay neighbours."""
    return [np.sort(part).astype(np.int64) for part in parts]
