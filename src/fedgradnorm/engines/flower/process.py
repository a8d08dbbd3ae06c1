"""The SuperLink as a process beside the server's own, gone when that one is."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedgradnorm.engines.flower import QUIET, link
from fedgradnorm.errors import ConfigError, TrainingError

WHY = {
    errno.EADDRINUSE: "something listens there already: stop it, or give another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: give another listen",
    errno.EACCES: "not allowed to this user: give a port above 1023",
}
"""What keeps a server from listening, and the way out; all of it in federation.toml."""


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink: the operator's secret, its process, and where it writes."""

    secret: str
    process: subprocess.Popen[bytes]
    output: Path

    def check(self) -> None:
        """A TrainingError if it has ended, with its last word."""
        if self.process.poll() is None:
            return
        words = self.output.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(words) if line.strip()), "nothing")
        raise TrainingError(
            f"the SuperLink has ended (code {self.process.returncode}); {self.output} says: "
            f"{last[:200]}"
        )


@contextmanager
def superlink(
    folder: Path, host: str, port: int, database: Path, output: Path, vector: int
) -> Iterator[SuperLink]:
    """A SuperLink with the certificates in ``folder``, for a shared vector of ``vector`` bytes."""
    _check_free(host, port)
    secret = secrets.token_hex(32)
    command = [sys.executable, "-P", "-m", "fedgradnorm.engines.flower.link"]
    command += ["--ssl-ca-certfile", str(folder / "ca.pem"), "--isolation", "process"]
    command += ["--ssl-certfile", str(folder / "server.pem")]
    command += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--database", str(database)]
    command += ["--host", host, "--port", str(port)]
    own = {link.SECRET: secret, link.PARENT: str(os.getpid()), link.VECTOR: str(vector)}
    with output.open("ab") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, **QUIET, **own},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield SuperLink(secret, process, output)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _check_free(host: str, port: int) -> None:
    """A ConfigError that says why, unless a server may listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            why = WHY.get(error.errno or 0, str(error.strerror or error))
            raise ConfigError(f"cannot listen on {host}:{port}: {why} (federation.toml)") from error
