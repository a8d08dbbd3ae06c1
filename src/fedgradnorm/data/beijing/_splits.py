"""Which hours train, validate and test: in this order of time, cut alike at every station."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._checks import number, whole
from fedgradnorm._errors import ConfigError, DataError

SPLITS = ("train", "validation", "test")

Rows = NDArray[np.int64]


def check_shares(rows: int | None, test_share: float, validation_share: float) -> None:
    """A ConfigError unless the shares leave a part for training and ``rows`` is a number."""
    if rows is not None:
        whole("beijing: rows", rows, 1)
    test, validation = (
        number("test_share", test_share),
        number("validation_share", validation_share),
    )
    if not (0 <= test < 1 and 0 <= validation < 1 and test + validation < 1):
        raise ConfigError(
            f"beijing: test_share {test_share!r} and validation_share {validation_share!r} must be "
            "0 or more and leave a part for training"
        )


def pick(
    who: str,
    time: NDArray[np.datetime64],
    good: NDArray[np.bool_],
    rows: int | None,
    shares: tuple[float, float],
    rng: np.random.Generator,
) -> dict[str, Rows]:
    """Positions of each split's hours, ascending; ``shares`` are of validation and of test.

    The period is cut, not the hours without a gap, so that stations with other gaps are cut at the
    same hours: no hour that one client trains on is another one's test. Each part then gives
    its share of ``rows``, drawn at random.
    """
    sizes = dict(zip(SPLITS, (1 - sum(shares), *shares), strict=True))
    hours = int((time[-1] - time[0]).astype(np.int64)) + 1
    ends = np.rint(np.cumsum(list(sizes.values())) * hours).astype(np.int64)
    part = np.searchsorted(ends, (time - time[0]).astype(np.int64), side="right")
    wanted = _counts(rows, sizes)
    found: dict[str, Rows] = {}
    for place, split in enumerate(SPLITS):
        if sizes[split] > 0:
            usable = np.flatnonzero(good & (part == place))
            found[split] = _drawn(f"{who}: {split}", usable, wanted.get(split), rng)
    return found


def _counts(rows: int | None, sizes: dict[str, float]) -> dict[str, int]:
    """Rows of each split; none are said where all hours are wanted."""
    if rows is None:
        return {}
    held = {split: round(sizes[split] * rows) for split in SPLITS[1:]}
    return {"train": rows - sum(held.values()), **held}


def _drawn(what: str, usable: Rows, count: int | None, rng: np.random.Generator) -> Rows:
    if not len(usable):
        raise DataError(f"{what} has no hour without a gap; change the shares or the task")
    if count is None:
        return usable
    if count < 1:
        raise DataError(f"{what} gets no row; raise rows or its share")
    if count > len(usable):
        raise DataError(
            f"{what} asks for {count} hours, {len(usable)} have no gap; lower rows, or leave it "
            "out to take them all"
        )
    drawn: Rows = np.sort(rng.choice(usable, count, replace=False))
    return drawn
