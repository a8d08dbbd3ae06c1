"""What a benchmark leaves: a JSON file that names machine, threads and versions, and a table."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("fedgradnorm", "torch", "numpy", "scikit-learn", "pfl", "flwr", "ray")
Row = dict[str, Any]


def options(description: str) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--threads", type=int, help="of PyTorch; its own choice by default")
    parser.add_argument("--repeats", type=int, default=5, help="the median of so many is kept")
    parser.add_argument("--only", nargs="*", help="rows whose name holds one of these words")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it still run?")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for table and JSON")
    return parser


def begin(given: argparse.Namespace) -> None:
    """Set the threads and make the folder."""
    if given.threads:
        torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)


def wanted(name: str, given: argparse.Namespace) -> bool:
    """Whether the row ``name`` was asked for."""
    return not given.only or any(word in name for word in given.only)


def about(gpu: bool = False) -> Row:
    """The machine, the threads and the versions that numbers belong to."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "machine": processor(),
        **({"gpu": torch.cuda.get_device_name()} if gpu else {}),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), **found},
    }


def fingerprint(*files: str) -> dict[str, str]:
    """The SHA-256 of files in the folder named by FEDGRADNORM_DATA."""
    folder = Path(os.environ["FEDGRADNORM_DATA"])
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}


def processor() -> str:
    """The processor by its maker's name, where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def earlier(path: Path, here: Row, given: argparse.Namespace) -> list[Row]:
    """Rows to keep when only some are measured again: those of the same machine and versions."""
    if not given.only or not path.exists():
        return []
    before = json.loads(path.read_text())
    if not isinstance(before, dict) or any(before.get(key) != here[key] for key in here):
        raise SystemExit(f"{path} is of another machine or version: measure all, or give --out")
    return list(before["rows"])


def merge(before: Sequence[Row], rows: Sequence[Row], key: str, order: Sequence[Any]) -> list[Row]:
    """New rows in the place of the earlier ones of the same ``key``, all in ``order``."""
    by_key = {row[key]: row for row in [*before, *rows]}
    return [by_key[name] for name in order if name in by_key]


def write(path: Path, here: Row, rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """``path`` as JSON, and next to it and on the screen a table of some of its columns."""
    path.write_text(json.dumps({**here, "rows": list(rows)}, indent=2) + "\n")
    text = table(rows, columns)
    path.with_suffix(".md").write_text(text)
    print(f"\n{text}\n{path}")


def table(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Markdown: ``columns`` maps keys of a row to headings."""
    lines = [list(columns.values()), ["---"] + ["---:"] * (len(columns) - 1)]
    lines += [[cell(row.get(key)) for key in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(value: object) -> str:
    """Three digits of a number; nothing for what was not measured."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
