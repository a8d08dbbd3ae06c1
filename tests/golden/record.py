"""Record the golden runs, and compare two recordings.

    python tests/golden/record.py OUT.npz [--only NAME ...]
    python tests/golden/record.py --compare OLD.npz NEW.npz

A recording holds for each case one vector with all of its numbers, and an index that says which of
them belong to which key. ``PYTHONPATH=.../src`` in front of the first command records the code
there. ``--only`` takes whole names of cases or parts of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
if str(HERE.parent) not in sys.path:  # run as a script
    sys.path.insert(0, str(HERE.parent))

Result = Mapping[str, NDArray[np.float64]]
GOLDEN = HERE / "golden.npz"
INDEX = "index"
TINY = 1e-6
"""An array whose numbers are all smaller is compared as if the largest were this."""


def write(path: Path, results: Mapping[str, Result]) -> None:
    """One file of all results; the same results give the same bytes."""
    index = {
        case: {key: list(values.shape) for key, values in found.items()}
        for case, found in results.items()
    }
    vectors = {
        case: np.concatenate([values.ravel() for values in found.values()])
        for case, found in results.items()
    }
    text = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    np.savez_compressed(path, allow_pickle=False, **{INDEX: text}, **vectors)


def read(path: Path) -> dict[str, dict[str, NDArray[np.float64]]]:
    """The results of every case in a file, by key."""
    results: dict[str, dict[str, NDArray[np.float64]]] = {}
    with np.load(path, allow_pickle=False) as file:
        for case, shapes in json.loads(file[INDEX].tobytes()).items():
            vector, place, found = file[case], 0, {}
            for key, shape in shapes.items():
                size = int(np.prod(shape))
                found[key] = vector[place : place + size].reshape(shape)
                place += size
            results[case] = found
    return results


@dataclass(frozen=True)
class Difference:
    """How far a result is from another: where they differ most, or what only one of them has."""

    identical: bool
    absolute: float = 0.0
    relative: float = 0.0
    key: str = ""
    unlike: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.unlike:
            return f"UNLIKE: {', '.join(self.unlike[:4])} ({len(self.unlike)} keys)"
        if self.identical:
            return "identical"
        return f"absolute {self.absolute:.1e}, relative {self.relative:.1e} at {self.key}"


def difference(old: Result, new: Result, common: bool = False) -> Difference:
    """The largest difference of two results, relative to the largest number of each array.

    Keys or shapes that only one of them has make them unlike; with ``common`` keys that both have
    are compared alone. NaN equals NaN.
    """
    both = [key for key in old if key in new]
    unlike = [] if common else sorted(old.keys() ^ new.keys())
    unlike += [key for key in both if old[key].shape != new[key].shape]
    if unlike:
        return Difference(False, np.inf, np.inf, unlike=tuple(unlike))
    identical, absolute, relative, where = True, 0.0, 0.0, ""
    for key in both:
        a, b = old[key], new[key]
        if np.array_equal(a, b, equal_nan=True):
            continue
        identical = False
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return Difference(False, np.inf, np.inf, key)
        gap = float(np.abs(np.where(np.isfinite(a), a - b, 0)).max())
        size = float(np.abs(np.where(np.isfinite(a), a, 0)).max())
        absolute = max(absolute, gap)
        if (share := gap / max(size, TINY)) > relative:
            relative, where = share, key
    return Difference(identical, absolute, relative, where)


def compare(old: Path, new: Path) -> int:
    """Print how two recordings differ, case by case; 1 if a case differs by more than it may."""
    from golden.cases import CASES, TOLERANCE

    olds, news = read(old), read(new)
    same, close, far = 0, 0, 0
    for name in dict.fromkeys([*olds, *news]):
        if name not in olds or name not in news:
            print(f"{name}: only in {old if name in olds else new}")
            far += 1
            continue
        found = difference(olds[name], news[name])
        within = found.relative <= (CASES[name].tolerance if name in CASES else TOLERANCE)
        same, close = same + found.identical, close + (within and not found.identical)
        far += not within
        print(f"{name}: {found}{'' if within else '  <-- too far'}")
    print(f"{same + close + far} cases: {same} identical, {close} within tolerance, {far} not")
    return int(far > 0)


def record(path: Path, only: list[str]) -> None:
    """Run cases and write what they give; of several ranks the first one writes."""
    import torch

    from golden.adapter import result
    from golden.cases import CASES

    torch.set_num_threads(1)
    chosen = only and [name for name in CASES if name in only]
    chosen = chosen or [name for name in CASES if not only or any(part in name for part in only)]
    leads = os.environ.get("RANK", "0") == "0"
    results, begun = {}, time.perf_counter()
    for name in chosen:
        start = time.perf_counter()
        torch.manual_seed(0)
        results[name] = result(CASES[name])
        if leads:
            print(f"{time.perf_counter() - start:6.2f} s  {name}", flush=True)
    if leads:
        write(path, results)
        print(f"{len(results)} cases in {time.perf_counter() - begun:.0f} s: {path}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--compare", action="store_true", help="compare two recordings")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    given = parser.parse_args()
    if len(given.files) != (2 if given.compare else 1):
        parser.error("give two files with --compare, else one")
    if given.compare:
        return compare(*given.files)
    record(given.files[0], given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
