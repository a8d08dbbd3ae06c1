"""RadComDynamic, read or generated, as federated clients with different tasks.

The paper's three clients learn the modulation (6 classes), the signal type (8) and the anomaly
(SNR below -4 dB). A fourth, for the demo, learns the SNR itself; its loss is far larger than the
others'. Without a file the signals are generated and labeled synthetic.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedgradnorm._checks import finite
from fedgradnorm._client import Client
from fedgradnorm._errors import DataError, choose
from fedgradnorm._memory import check_draw
from fedgradnorm.data._arrays import chosen, client_of, split_shares
from fedgradnorm.data._bad_rows import OnBad, tell_dropped
from fedgradnorm.data._paths import find_data
from fedgradnorm.data._source import Source
from fedgradnorm.data.radcom._file import read
from fedgradnorm.data.radcom._generated import ROW_BYTES, Counts, generate
from fedgradnorm.data.radcom._signal_set import (
    ALL_MODULATIONS,
    ALL_SIGNALS,
    MODULATIONS,
    ORIGINAL_SAMPLES,
    OVER_THE_AIR,
    SIGNALS,
    Progress,
    RadCom,
)
from fedgradnorm.tasks._making import classification, regression
from fedgradnorm.tasks._task import Task

Rows = NDArray[np.int64]


__all__ = ["clients"]

logger = logging.getLogger(__name__)

TASKS = ("modulation", "signal", "anomaly", "snr")
"""What a client can predict of a signal."""
_VERSION = 2  # raise it when the same file or seed gives other rows


def prepare(
    path: str | Path | None = None,
    *,
    samples: int = ORIGINAL_SAMPLES,
    seed: int = 0,
    counts: Counts = "original",
    on_bad: OnBad = "error",
    folder: Path | None = None,
    progress: Progress | None = None,
) -> RadCom:
    """The rows of a RadComDynamic file, or ``samples`` generated ones, kept in the cache.

    The first call reads or generates; later ones map the kept arrays into memory. A relative
    ``path`` is also looked for in the folder named by FEDGRADNORM_DATA; ``folder`` is the cache's.
    """
    from fedgradnorm.data._cache import cached, fingerprint

    check_draw("radcom", {"samples": samples}, seed)
    key: dict[str, object]
    if path is None:
        key = {"version": _VERSION, "samples": samples, "seed": seed}
        key |= {} if counts == "even" else {"counts": counts}
    else:
        path = find_data(path, ("RadComDynamic's HDF5 file",), "radcom")
        # The time too: the hash of a big file is of parts of it, and a row could change between.
        changed = path.stat().st_mtime_ns
        key = {"version": _VERSION, "source": fingerprint(path), "time": changed, "on_bad": on_bad}

    def build() -> tuple[dict[str, NDArray[Any]], dict[str, object]]:
        if path is None:
            data = generate(samples, seed, counts=counts, progress=progress)
        else:
            data = read(path, on_bad=on_bad, progress=progress)
        arrays = {name: getattr(data, name) for name in ("iq", "modulation", "signal", "snr")}
        return arrays, {"dropped": data.dropped}

    kept = cached("radcom", key, build, folder=folder)
    dropped, synthetic = tuple(kept.info["dropped"]), path is None
    if not kept.fresh:
        tell_dropped(list(dropped), path)
        if synthetic:
            logger.info("radcom: %d SYNTHETIC radio signals from the cache", len(kept.arrays["iq"]))
    return RadCom(**kept.arrays, synthetic=synthetic, dropped=dropped)


def clients(
    *,
    source: str | Path | None = None,
    tasks: Sequence[str] = ("modulation", "signal", "anomaly"),
    samples: int = ORIGINAL_SAMPLES,
    test_share: float = 0.2,
    validation_share: float = 0.0,
    anomaly_below: float = -4.0,
    seed: int = 0,
    loss_scale: Mapping[str, float] | None = None,
    allocation: Literal["disjoint", "shared"] = "disjoint",
    counts: Counts = "original",
    level: Literal["unit", "stored"] = "unit",
    on_bad: OnBad = "error",
    cache: bool = False,
    progress: Progress | None = None,
) -> list[Client]:
    """One client a task: "modulation", "signal", "anomaly" (SNR < ``anomaly_below``) or "snr".

    Over-the-air files have three more modulations and signals, which become three more classes.

    Args:
        source: RadComDynamic's HDF5 file; synthetic signals are generated without it. In a config:
            path.
        tasks: the tasks, with one client each: "modulation", "signal", "anomaly", "snr".
        samples: the total number of examples, drawn from a file or generated.
        test_share, validation_share: the shares of examples to hold out, each from 0 to 1.
        anomaly_below: the SNR in dB under which a signal is an anomaly.
        seed: draws splits and shares of examples; by default the seed of the run.
        loss_scale: a factor on a task's loss, by the task's name.
        allocation: "disjoint" gives every client an equal number of examples of its own; with
            "shared", each has all of them.
        counts: of generated signals: "original" has as few bpsk signals as RadComDynamic, "even"
            takes the missing ones from fmcw, bpsk and ask alike.
        level: "unit" scales each window of a file to mean power 1, "stored" keeps its level.
        on_bad: "error" stops at an unusable value, "drop" leaves out its example.
        cache: keep what was generated in the user's cache folder.
        progress: called with (done, total) now and then; not for configs.
    """
    tasks, scales = chosen("tasks", tasks, TASKS), dict(loss_scale or {})
    for name in scales:
        choose(name, tasks, "task in loss_scale")
    split_shares("radcom", test_share, validation_share)
    finite("radcom: anomaly_below", anomaly_below)
    # Every client gets a copy of its rows; of a file's rows there are no more than it has.
    check_draw("radcom", {"samples": samples}, seed, 0 if source is not None else 2 * ROW_BYTES)
    choose(allocation, ("disjoint", "shared"), "allocation")
    choose(level, ("unit", "stored"), "level")
    if source is None and not cache:
        data = generate(samples, seed, counts=counts, progress=progress)
    else:
        data = prepare(
            source, samples=samples, seed=seed, counts=counts, on_bad=on_bad, progress=progress
        )
    rows = np.random.default_rng([seed, len(data)]).permutation(len(data))[:samples]
    each = len(rows) // len(tasks) if allocation == "disjoint" else len(rows)
    inputs: dict[str, torch.Tensor] = {}
    made: list[Client] = []
    for number, name in enumerate(tasks):
        start = number * each if allocation == "disjoint" else 0
        splits = _split(name, rows[start : start + each], test_share, validation_share)
        if not inputs or allocation == "disjoint":  # shared rows are held in memory once
            for split, at in splits.items():
                iq = data.iq[at]
                if level == "unit" and not data.synthetic:
                    power = 2 * np.square(iq, dtype=np.float64).mean(axis=1, keepdims=True)
                    iq = (iq / np.sqrt(np.where(power > 0, power, 1))).astype(np.float32)
                inputs[split] = torch.from_numpy(iq)
        task, target, labels = _learned(name, data, anomaly_below, scales.get(name, 1.0))
        pairs = {split: (inputs[split], target[at]) for split, at in splits.items()}
        made.append(client_of(name, task, pairs, labels=labels))
    return made


def _learned(
    name: str, data: RadCom, anomaly_below: float, loss_scale: float
) -> tuple[Task, NDArray[Any], tuple[str, ...] | None]:
    """The task, its target of every row, and the classes' names."""
    if name == "snr":
        return regression(1, loss_scale=loss_scale), data.snr[:, None], None
    if name == "anomaly":
        target = (data.snr < anomaly_below).astype(np.int64)
        labels: tuple[str, ...] = ("normal", "anomaly")
    else:
        target = data.modulation if name == "modulation" else data.signal
        labels = ALL_MODULATIONS if name == "modulation" else ALL_SIGNALS
        if data.modulation.max() < len(MODULATIONS) and data.signal.max() < len(SIGNALS):
            labels = labels[: -len(OVER_THE_AIR)]  # of the over-the-air release alone
    return classification(len(labels), loss_scale=loss_scale), target, labels


def _split(name: str, rows: Rows, test_share: float, validation_share: float) -> dict[str, Rows]:
    """A client's rows by split; a split with a share of 0 is left out."""
    splits: dict[str, Rows] = {}
    for split, share in (("test", test_share), ("validation", validation_share)):
        if share > 0:
            count = max(1, round(share * len(rows)))
            taken = sum(map(len, splits.values()))
            splits[split] = rows[taken : taken + count]
    splits["train"] = rows[sum(map(len, splits.values())) :]
    if len(splits["train"]) == 0:
        raise DataError(f"client {name!r}: no training rows left of {len(rows)}; give more samples")
    return splits


Source("radcom", clients, "radio signals: generated, or RadComDynamic's file", ("path",)).register()
