"""One nested dict in, one file out: atomically, as safetensors, never pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgradnorm.errors import RunFolderError


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` holds either all of it or what it held before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut too
    finally:
        os.close(folder)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: str = "") -> None:
    """Tensors by name, and a text beside them, as one safetensors file."""
    from safetensors.torch import save

    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    write_atomically(path, save(plain, metadata={"note": note}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """What :func:`write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            note = (file.metadata() or {}).get("note", "")
            return {name: file.get_tensor(name) for name in file.keys()}, note  # noqa: SIM118
    except FileNotFoundError as error:
        raise RunFolderError(f"{path}: no such file") from error
    except (SafetensorError, OSError) as error:
        raise RunFolderError(f"{path} is damaged: {str(error).splitlines()[0]}") from error


def save(state: Mapping[str, Any], path: Path) -> None:
    """Write a nested dict of tensors and plain values."""
    tensors: dict[str, Tensor] = {}
    skeleton = _strip(state, tensors)
    write_tensors(path, tensors, json.dumps(skeleton))


def load(path: Path) -> dict[str, Any]:
    """Read a nested dict back, exactly as it was."""
    tensors, note = read_tensors(path)
    try:
        state = _fill(json.loads(note), tensors)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RunFolderError(f"{path} is no checkpoint of this library: {error}") from error
    assert isinstance(state, dict)
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
