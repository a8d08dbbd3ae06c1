"""What the output of a notebook depends on besides its own text, as one name."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import distributions
from pathlib import Path


def program_hash(root: Path) -> str:
    """A hash of the package's files, of Python, and of every package that is installed."""
    found = hashlib.sha256(f"{platform.machine()} {platform.python_version()}".encode())
    installed = {f"{one.metadata['Name']} {one.version}" for one in distributions()}
    found.update("\n".join(sorted(installed)).encode())
    for path in sorted((root / "src").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(str(path.relative_to(root)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:16]
