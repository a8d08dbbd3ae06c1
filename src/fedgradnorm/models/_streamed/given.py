"""What a user gives as a split, found to be rows that stay where they lie, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgradnorm._checks import whole
from fedgradnorm._errors import DataError
from fedgradnorm.models._streamed.feed import Change, Feed
from fedgradnorm.models._streamed.row_sources import DatasetSource, as_source
from fedgradnorm.models._streamed.rows import Streamed, StreamedTargets


def stream(rows: Any, *, workers: int = 1) -> Feed:
    """Read examples batch by batch while a client trains, and never all at once.

    ``rows`` is a map-style ``torch.utils.data.Dataset``, an ``np.memmap`` or a ``.npy`` file. Pass
    the result as a client's split if it is a Dataset of pairs ``(x, y)``, otherwise as the ``x`` of
    a split. You can also pass a Dataset or a memory map directly; use this function for files, and
    to set ``workers``.

    ``workers`` threads read ahead. By default one thread reads for all clients, so a Dataset's code
    never runs twice at the same time. With 0, the training thread reads.

    >>> import tempfile
    >>> from fedgradnorm import Client, classification
    >>> file = Path(tempfile.mkdtemp()) / "x.npy"
    >>> np.save(file, np.zeros((1000, 8), dtype=np.float32))
    >>> Client("a", classification(2), train=(stream(file), np.arange(1000) % 2)).size
    1000
    """
    workers = whole("workers", workers, 0)
    if isinstance(rows, (str, Path)):
        path = Path(rows).expanduser()
        if path.suffix.lower() != ".npy":
            raise DataError(
                f"{path}: rows are read from .npy files; use fgn.data.Table(..., stream=True) for "
                "a table, and a map-style Dataset for anything else"
            )
        rows = mapped(path)
    source = as_source(rows)
    if source is None:
        raise DataError(
            "stream takes a map-style Dataset, an np.memmap or a .npy file, not "
            f"{type(rows).__name__}; arrays in memory need no stream"
        )
    return Feed(source, "", workers=workers)


def mapped(path: Path) -> Any:
    """The array of a .npy file as a memory map; a DataError unless it is one."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy evaluates the header as Python: damage raises anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path}: not a readable .npy file of numbers ({reason}); save it with numpy.save"
        ) from error


def as_feed(x: Any, where: str, *, pairs: bool) -> Feed | None:
    """The feed that a split, or with ``pairs=False`` its inputs, come from; None in memory."""
    if isinstance(x, Streamed):
        return x.feed.but(where=where)
    feed = x if isinstance(x, Feed) else None
    source = feed.source if feed is not None else as_source(x)
    if source is None:
        return None
    if isinstance(source, DatasetSource):
        try:
            source = DatasetSource(source.dataset, pairs=pairs)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    elif pairs:
        raise DataError(
            f"{where}: {source.name} holds inputs alone; give a pair (x, y), of which only x is "
            "read batch by batch"
        )
    found = Feed(source, where) if feed is None else feed.but(source=source, where=where)
    if not len(found):
        raise DataError(f"{where}: {source.name} is empty; a client needs at least one row")
    return found


def streamed_split(where: str, split: Any, target: Change) -> tuple[Streamed, Any] | None:
    """A split that is read batch by batch: inputs and targets; None if it is in memory.

    Targets of their own are as they were given; those of a Dataset go through ``target``.
    """
    if isinstance(split, (Feed, torch.utils.data.Dataset)):
        feed = as_feed(split, where, pairs=True)
        assert feed is not None
        feed = feed.but(change_y=(target,))
        return Streamed(feed), StreamedTargets(feed)
    if not isinstance(split, (tuple, list)) or len(split) != 2:
        return None
    x, y = split
    feed = as_feed(x, where, pairs=False)
    if feed is None:
        return None
    return Streamed(feed), StreamedTargets(feed) if isinstance(y, StreamedTargets) else y


def target_rows(y: Any, where: str) -> Any:
    """Targets given separately from inputs, in memory: one number per row, or a few."""
    source = as_source(y)
    if source is None:
        return y
    if source.pairs or isinstance(source, DatasetSource):
        raise DataError(
            f"{where}: y is a Dataset; give one Dataset of pairs (x, y), or y as an array"
        )
    return source.read(np.arange(len(source), dtype=np.int64))[0]
