"""Run folders spoiled at random: ``python spoiling.py FOLDER SEED COUNT``.

Each case copies a run folder, spoils one thing in it, and lets one reader at it. The law: a reader
either continues, or says in one line of our own what is wrong and leaves every file as it was. What
broke the law is printed, one line per case. Memory is limited, and a case that hangs is one that
broke it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fedgradnorm as fgn
import flat
import toys
from experiments.small_config import small_config
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.history import averaged_weights
from fedgradnorm._runs.reader import collect, read_run
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import execute, resume_config
from fedgradnorm.experiments._groups import group

SPARE = 2 << 30
"""Bytes of address space that a reader may take beyond what the process has at the start."""
SECONDS = 60
ODD = [None, True, 0, -1, 7, 10**30, 1e308, float("nan"), "", "x" * 300, "\ud800", [], {}, [[0]],
       {"layer": "Linear", "options": {"in_features": 10**6, "out_features": 10**6}},
       {"layer": "Transformer", "options": {"num_encoder_layers": 10**9}}, "a\nb"]  # fmt: skip
Change = Callable[[Path, random.Random], None]


def spots(tree: Any) -> list[tuple[Any, Any]]:
    """Every place in a nested value: (container, key)."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    found = [(tree, key) for key in keys]
    inner = [tree[key] for key in keys if isinstance(tree[key], (dict, list))]
    return found + [spot for part in inner for spot in spots(part)]


def bend(tree: Any, chance: random.Random) -> None:
    """Remove, replace, swap, rename or nest one place of a nested value."""
    places = spots(tree)
    where, key = chance.choice(places)
    how = chance.choice(["remove", "replace", "replace", "swap", "rename", "nest"])
    if how == "remove":
        del where[key]
    elif how == "swap":
        there, other = chance.choice(places)
        where[key], there[other] = there[other], where[key]
    elif how == "rename" and isinstance(where, dict):
        where[chance.choice(["", "unknown", key[::-1]])] = where.pop(key)
    elif how == "nest":
        for _ in range(chance.choice([1, 3, 400])):
            where[key] = [where[key]] if chance.random() < 0.5 else {"x": where[key]}
    else:
        where[key] = chance.choice(ODD)


def bytes_of(path: Path, chance: random.Random) -> None:
    """Flip a bit, cut the file, or put something into it."""
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    how = chance.choice(["flip", "cut", "insert", "empty", "deep"])
    if how == "flip":
        data[at] ^= 1 << chance.randrange(8)
    elif how == "insert":
        data[at:at] = chance.randbytes(chance.randint(1, 9))
    else:
        data = data[:at] if how == "cut" else bytearray(b"" if how == "empty" else b"[" * 10**5)
    path.write_bytes(data)


def lines_of(path: Path, chance: random.Random) -> None:
    """Remove, repeat, change or move a line, or one cell of it."""
    lines = path.read_text().splitlines()
    at, cells = chance.randrange(len(lines)), []
    how = chance.choice(["remove", "repeat", "cell", "swap"])
    if how == "remove":
        del lines[at]
    elif how == "repeat":
        lines.insert(at, lines[at])
    elif how == "swap":
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        mark = "," if path.suffix == ".csv" else "="
        cells = lines[at].split(mark)
        cells[-1 if mark == "=" else chance.randrange(len(cells))] = chance.choice(
            ["", "x", "-1", "nan", "'", '"', "9" * 30, "[]", "{}", "\x00", "true"]
        )
        lines[at] = mark.join(cells)
    path.write_text("\n".join(lines) + "\n")


def json_of(path: Path, chance: random.Random) -> None:
    tree = json.loads(path.read_text())
    tree.pop("checksum", None)  # which would find all of them
    bend(tree, chance)
    path.write_text(json.dumps(tree))


def header_of(path: Path, chance: random.Random) -> None:
    """Change what a safetensors file says of its tensors."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:end]), data[end:]
    bend(header, chance)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def note_of(path: Path, chance: random.Random) -> None:
    """Change a checkpoint's note, or a tensor, and seal the file as if that were right."""
    tensors, note = checkpoint.read_tensors(path)
    if note and chance.random() < 0.8:
        tree = json.loads(note)
        bend(tree, chance)
        note = json.dumps(tree)
    else:
        name = chance.choice(list(tensors))
        tensors[name] = chance.choice([torch.zeros(3, 3), tensors[name].double(), torch.ones(1)])
    checkpoint.write_tensors(path, tensors, note)


def kind_of(path: Path, chance: random.Random) -> None:
    """Put something else in the file's place."""
    path.unlink()
    how = chance.choice(["nothing", "folder", "pipe", "loop", "nowhere", "device"])
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how != "nothing":
        target = {"loop": path.name, "nowhere": "/nowhere/at/all", "device": "/dev/zero"}[how]
        path.symlink_to(target)


SPOIL: dict[str, list[Change]] = {
    ".json": [json_of, json_of, json_of, json_of, bytes_of, kind_of],
    ".csv": [lines_of, lines_of, bytes_of, kind_of],
    ".toml": [lines_of, bytes_of, kind_of],
    ".safetensors": [header_of, note_of, note_of, bytes_of, kind_of],
    ".txt": [bytes_of, kind_of],
}


def snapshot(folder: Path) -> dict[str, Any]:
    """Names, kinds and contents of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        ordinary = path.is_file() and not path.is_symlink()
        found[str(path)] = path.read_bytes() if ordinary else path.lstat().st_mode
    return found


def toy_run(folder: Path, **more: Any) -> fgn.Run:
    """A run of three rounds from Python."""
    how = {"rounds": 3, "eval_every": 0, "checkpoint_every": 1, **more}
    return flat.train(toys.noisy_network(), toys.clients()[1:], folder=folder, **how)


def stop(event: Any) -> None:
    if event.round == 2:
        raise KeyboardInterrupt


def make_runs(parent: Path) -> None:
    """Finished and stopped runs, from Python and from a config."""
    toy_run(parent / "toy-whole")
    config = load_config(small_config(parent), ["rounds=3", "evaluation.every=0"])
    execute(config, parent / "config-whole")
    for name in ("toy", "config"):
        try:
            if name == "toy":
                toy_run(parent / "toy-begun", progress=stop)
            else:
                execute(config, parent / "config-begun", progress=stop)
        except fgn.Interrupted:
            continue
        raise AssertionError("it was not stopped")


def report(folder: Path) -> None:
    """What commands read of a run without its models."""
    collect([folder])
    averaged_weights(folder)
    group([read_run(folder)])


READERS: dict[str, list[Callable[[Path], Any]]] = {
    "toy-whole": [fgn.load, report],
    "config-whole": [fgn.load, report],
    "toy-begun": [lambda folder: toy_run(folder, resume=True), report],
    "config-begun": [lambda folder: execute(resume_config(folder), folder, resume=True)],
}


def case(runs: Path, seed: int) -> tuple[str, str]:
    """How one case went ("on", "refused" or "broken"), and its story."""
    chance = random.Random(seed)
    name = chance.choice(list(READERS))
    folder = runs / "spoiled"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(runs / name, folder)
    files = sorted(p for p in folder.rglob("*") if p.suffix in SPOIL)
    path, read = chance.choice(files), chance.choice(READERS[name])
    change = chance.choice(SPOIL[path.suffix])
    story = f"seed {seed}: {name}, {change.__name__} {path.relative_to(folder)}"
    change(path, chance)
    before = snapshot(folder)
    signal.alarm(SECONDS)
    try:
        read(folder)
    except fgn.FedGradNormError as error:
        if "\n" in str(error):
            return "broken", f"{story}: two lines: {error!r}"
        if not isinstance(error, fgn.TrainingError) and snapshot(folder) != before:
            return "broken", f"{story}: refused, but the folder changed: {error}"
        return "refused", f"{story}: {error}"
    except BaseException as error:
        return "broken", f"{story}: {type(error).__name__}: {str(error)[:300]!r}"
    finally:
        signal.alarm(0)
    return "on", story


def hang(*_: object) -> None:
    raise TimeoutError(f"no end after {SECONDS} s")


def main(runs: Path, seed: int, count: int) -> int:
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, hang)
    make_runs(runs)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, used + SPARE))
    outcomes: Counter[str] = Counter()
    for number in range(seed, seed + count):
        outcome, story = case(runs, number)
        outcomes[outcome] += 1
        if outcome == "broken" or "-v" in sys.argv:
            print(outcome, story, flush=True)
    print(json.dumps(outcomes), flush=True)
    return bool(outcomes["broken"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
