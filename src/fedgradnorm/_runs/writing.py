"""What a disk refuses while a run is kept on it, in one line that says how to go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedgradnorm._errors import RunFolderError
from fedgradnorm._runs.reading import flags

GO_ON = (
    "mend that, then resume the run (fgn.resume, or fedgradnorm resume): it goes on from its last "
    "checkpoint, or from the start where it has none"
)
CHOOSE = "mend that, or choose another folder"


@contextmanager
def writing(folder: Path, way_out: str = GO_ON) -> Iterator[None]:
    """Turn what the system raises into a RunFolderError with a way out."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if way_out is GO_ON and not folder.is_dir():
            reason, way_out = "it was removed while the run was training", "start the run again"
        raise RunFolderError(f"{folder} cannot be written: {reason}; {way_out}") from error


def opened_to_write(path: Path, mode: str) -> IO[Any]:
    """Open a file of a run folder; where it is a link, nothing is written through it."""

    def opener(name: str, given: int) -> int:
        return os.open(name, given | flags("O_NOFOLLOW"), 0o666)

    if "b" in mode:
        return open(path, mode, opener=opener)
    return open(path, mode, newline="", encoding="utf-8", opener=opener)
