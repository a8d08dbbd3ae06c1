"""One nested dict in, one file out: atomically, as safetensors, never pickle.

Of many clients each checkpoint adds the rows that changed, in a file of their own. It names its
files in order; later rows replace earlier ones. A file is whole on disk before a checkpoint names
it, and is removed only when none does. So a kill at any moment leaves a checkpoint with its files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedgradnorm._errors import FedGradNormError, RunFolderError
from fedgradnorm._runs.files import check_file, check_folder, opened, opened_to_write, present
from fedgradnorm._runs.layout import CHECKPOINT, PREVIOUS, ROWS, temporary

if TYPE_CHECKING:
    from fedgradnorm._engines import Journal

log = logging.getLogger("fedgradnorm")

Part = bytes | memoryview
"""Some of what a file holds."""

CHECKSUM = "blake2b"
"""What a file's metadata call its checksum."""

BOUND = "belongs"
"""What they call the run and the file name that the content was written for."""


def write_atomically(path: Path, data: Part | Iterable[Part], previous: Path | None = None) -> None:
    """Write ``data`` so that ``path`` holds either all of it or what it held before.

    It may come in parts, and need then not be in memory at once. A link in the place of ``path`` is
    replaced, not followed. With ``previous`` the old content is kept under that name.
    """
    here = temporary(path)
    try:
        here.unlink(missing_ok=True)  # of a killed process with our number
        with opened_to_write(here, "xb") as file:
            for part in [data] if isinstance(data, (bytes, memoryview)) else data:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and present(path):
            _keep(path, previous)
        here.replace(path)
    finally:
        here.unlink(missing_ok=True)
    if os.name != "nt":  # Windows opens no folder
        # A rename must survive a power cut too.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _keep(path: Path, previous: Path) -> None:
    """Give a file a second name, which replaces what had it; ``path`` is there all the time."""
    second = temporary(previous)
    second.unlink(missing_ok=True)
    try:
        os.link(path, second, follow_symlinks=False)
    except OSError:  # a file system without hard links: a kill now leaves the second name alone
        path.replace(previous)
    else:
        second.replace(previous)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor | Sequence[Tensor]],
    note: str = "",
    run: str = "",
    previous: Path | None = None,
) -> None:
    """Write tensors by name, a text and a checksum of both as one safetensors file.

    A list of tensors is written as one, along their first axis, without a copy in memory.
    ``run`` is the identity of the run that the file belongs to: together with the file's name it
    keeps files of different runs, or of different clients, from being taken for each other.
    safetensors itself would copy all tensors twice, and write two entries of metadata in an order
    that changes from process to process.
    """
    plain = {
        name: [one.detach().cpu().contiguous() for one in ([t] if isinstance(t, Tensor) else t)]
        for name, t in tensors.items()
    }
    header = _header(plain)
    parts = (one for name in header for one in plain[name])
    body = [memoryview(one.reshape(-1).view(torch.uint8).numpy().data) for one in parts]
    bound = f"{run} {path.name}" if run else ""
    metadata = {"note": note, BOUND: bound, CHECKSUM: _checksum(header, note + bound, body)}
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns the tensors too
    write_atomically(path, [len(text).to_bytes(8, "little"), text, *body], previous)


def _header(tensors: Mapping[str, Sequence[Tensor]]) -> dict[str, Any]:
    """What safetensors says of these tensors, in its order: large kinds of numbers first."""
    found, start = dict[str, Any](), 0
    for name in sorted(tensors, key=lambda name: (_KINDS.index(tensors[name][0].dtype), name)):
        first, *more = tensors[name]
        shape, end = list(first.shape), start + sum(one.nbytes for one in tensors[name])
        if more:
            shape[0] += sum(len(one) for one in more)
        found[name] = {"dtype": _CALLED[first.dtype], "shape": shape, "data_offsets": [start, end]}
        start = end
    return found


_CALLED = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
    torch.float32: "F32", torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.uint16: "U16", torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Kinds of numbers and what safetensors calls them, in the order in which it writes them."""
_KINDS = list(_CALLED)


def read_tensors(path: Path, run: str = "", name: str = "") -> tuple[dict[str, Tensor], str]:
    """What :func:`write_tensors` wrote; a RunFolderError if the file is damaged.

    With ``run`` it must have been written for that run, as the file ``name`` (its own by default).
    """
    from safetensors import safe_open

    if not present(path):
        raise RunFolderError(f"{path}: no such file")
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _verify(path, metadata)
            if run and metadata.get(BOUND) != f"{run} {name or path.name}":
                raise RunFolderError(
                    f"{path} belongs to another run or client; restore the run's own file"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FedGradNormError:
        raise
    except Exception as error:  # a foreign reader of a foreign file: it may say anything
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunFolderError(f"{path} is damaged: {reason}") from error
    return tensors, metadata.get("note", "")


def _verify(path: Path, metadata: Mapping[str, str]) -> None:
    """Refuse a file whose content is not what its checksum was made of."""
    with opened(path) as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        chunks = iter(lambda: file.read(1 << 20), b"")
        found = _checksum(header, metadata.get("note", "") + metadata.get(BOUND, ""), chunks)
    if found != metadata.get(CHECKSUM):
        raise RunFolderError(
            f"{path} is damaged: its content does not match its checksum; restore it from a "
            "copy, or start the run again in another folder"
        )


def _checksum(header: Mapping[str, Any], note: str, body: Iterable[Part]) -> str:
    """A hash of the tensors (names, shapes, kinds, every byte) and of the note."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([header, note], sort_keys=True).encode())
    for chunk in body:
        digest.update(chunk)
    return digest.hexdigest()


def save(state: Mapping[str, Any], path: Path, run: str = "", previous: Path | None = None) -> None:
    """Write a nested dict of tensors and plain values; see :func:`write_tensors`."""
    tensors: dict[str, Tensor] = {}
    skeleton = _strip(state, tensors)
    write_tensors(path, tensors, json.dumps(skeleton), run, previous)


def latest(folder: Path, run: str, go_back: bool = True) -> dict[str, Any] | None:
    """The last checkpoint of a run, or the one before where that is damaged; None without any.

    Without ``go_back`` a damaged one is an error.
    """
    newest, before = folder / CHECKPOINT, folder / PREVIOUS
    if present(newest):
        try:
            return load(newest, run)
        except RunFolderError as error:
            if not (go_back and present(before)):
                raise
            log.warning("%s; continuing from the checkpoint before it", error)
    return load(before, run, CHECKPOINT) if go_back and present(before) else None


def load(path: Path, run: str = "", name: str = "") -> dict[str, Any]:
    """Read a nested dict back, exactly as it was; see :func:`read_tensors`."""
    tensors, note = read_tensors(path, run, name)
    try:
        state = _fill(json.loads(note), tensors)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise RunFolderError(f"{path} is no checkpoint of this library: {error}") from error
    if not isinstance(state, dict):
        raise RunFolderError(f"{path} is no checkpoint of this library: it holds no table")
    return state


def _strip(value: Any, tensors: dict[str, Tensor]) -> Any:
    """``value`` as JSON, with tensors moved to ``tensors`` and containers tagged by kind."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return ["tensor", name]
    if isinstance(value, Mapping):
        return ["dict", [[key, _strip(item, tensors)] for key, item in value.items()]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_strip(item, tensors) for item in value]]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__}")


def _fill(tagged: Any, tensors: Mapping[str, Tensor]) -> Any:
    kind, content = tagged
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _fill(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_fill(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return content


JOURNAL = "journal"
"""What a checkpoint calls the rows, where it holds them itself."""

FULL = 2.0
"""When files hold so many times the rows that there are, they are written anew as one."""


class Segments:
    """The files of one run, in the folder ``rows``."""

    def __init__(self, folder: Path, run: str = "") -> None:
        self._folder, self.run = folder / ROWS, run
        self.names: list[str] = []
        self._before: list[str] = []  # of the checkpoint before the last one
        self._rows = 0

    def add(self, journal: Journal, whole: bool = False) -> dict[str, Any]:
        """Write what changed; what a checkpoint has to say of it.

        That is the names of files or, with ``whole``, all rows themselves.
        """
        check_folder(self._folder)
        new, alive = journal.count()
        anew = whole or self._rows + new > FULL * alive
        rows = journal.changed(everything=anew)
        if whole:
            self.names, self._rows = [], 0
            return {JOURNAL: rows}
        if new:
            self._folder.mkdir(exist_ok=True)
            # A number that no file has, also none that a kill has left.
            number = max((int(path.stem) for path in self._files()), default=0) + 1
            path = self._folder / f"{number:06d}.safetensors"
            save(rows, path, self.run)
            self.names = [path.name] if anew else [*self.names, path.name]
            self._rows = alive if anew else self._rows + new
        return {ROWS: self.names}

    def _files(self) -> list[Path]:
        """The files that we write; a copy that somebody made is not one of them."""
        return [path for path in self._folder.glob("*.safetensors") if path.stem.isdecimal()]

    def settle(self, journal: Journal) -> None:
        """A checkpoint names the files now: forget what changed, and remove older files."""
        journal.settle()
        self._remove_all_but({*self.names, *self._before})
        self._before = list(self.names)

    def finish(self) -> None:
        """The run has ended: only the last checkpoint is left."""
        self._remove_all_but(set(self.names))

    def _remove_all_but(self, needed: Collection[str]) -> None:
        for path in self._files():
            if path.name not in needed:
                path.unlink()
        if not needed and self._folder.is_dir():
            with suppress(OSError):  # something of somebody else's is in it
                self._folder.rmdir()

    def restore(self, state: Mapping[str, Any], journal: Journal) -> None:
        """Let a journal take all rows that a checkpoint holds or names."""
        self.names = _named(state)
        for rows in self.pieces(state):
            self._rows += sum(len(part["names"]) for part in rows["parts"]) if self.names else 0
            journal.take(rows)
        journal.settle()

    def pieces(self, state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The rows that a checkpoint holds or names, in the order in which they are taken over."""
        check_folder(self._folder)
        if JOURNAL in state:
            yield state[JOURNAL]
        for name in _named(state):
            yield load(self._folder / name, self.run)


def _named(state: Mapping[str, Any]) -> list[str]:
    """The files that a checkpoint names."""
    names = [str(name) for name in state.get(ROWS, ())]
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"a file of rows called {name!r:.40}")
    return names
