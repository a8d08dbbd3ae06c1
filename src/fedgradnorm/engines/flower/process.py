"""The SuperLink as a process beside the server's own, gone when that one is."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgradnorm.engines.flower import QUIET, link


@contextmanager
def superlink(folder: Path, host: str, port: int, database: Path, output: Path) -> Iterator[str]:
    """A SuperLink with the certificates in ``folder``; gives the operator's secret."""
    secret = secrets.token_hex(32)
    command = [sys.executable, "-P", "-m", "fedgradnorm.engines.flower.link"]
    command += ["--ssl-ca-certfile", str(folder / "ca.pem"), "--isolation", "process"]
    command += ["--ssl-certfile", str(folder / "server.pem")]
    command += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--database", str(database)]
    command += ["--host", host, "--port", str(port)]
    environment = {**os.environ, **QUIET, link.SECRET: secret, link.PARENT: str(os.getpid())}
    with output.open("ab") as file:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        yield secret
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
