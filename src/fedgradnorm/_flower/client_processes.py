"""Clients as processes of this machine; who starts them need not load what they load."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedgradnorm._flower.joining import join_command
from fedgradnorm._runs.layout import CLIENT, JOIN_LOG


@contextmanager
def joined(homes: list[Path], allow: Sequence[str] = ()) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A ``join`` process for each client's folder, its words in ``join.log`` there."""
    running: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    try:
        for home in homes:
            command = join_command(home / CLIENT, allow)
            with (home / JOIN_LOG).open("ab") as file:
                running.append(
                    subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                    )
                )
        yield running
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
