"""The SuperLink as a separate process, which ends when the server's process does."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import ssl
import subprocess
import sys
from pathlib import Path

from fedgradnorm._errors import ConfigError, TrainingError
from fedgradnorm._flower.wire import QUIET
from fedgradnorm._runs.layout import CA, FEDERATION, SERVER_CERTIFICATE, SERVER_KEY

PASSED = ("FEDGRADNORM_OPERATOR", "FEDGRADNORM_PARENT", "FEDGRADNORM_ANSWER")
"""Environment variables of that process alone: the operator's secret, the process that started it,
and the bytes of the largest answer."""
WHY = {
    errno.EADDRINUSE: "something listens there already: stop it, or give another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: give another listen",
    errno.EACCES: "not allowed to this user: give a port above 1023",
}
"""What keeps a server from listening, and the way out; all of it in federation.toml."""


class SuperLink:
    """A SuperLink that runs while it is entered: the operator's secret, and where it writes.

    It has the certificates in ``folder``, and takes answers of at most ``answer`` bytes.
    """

    def __init__(
        self, folder: Path, host: str, port: int, database: Path, output: Path, answer: int
    ) -> None:
        self.secret, self.output, self.address = secrets.token_hex(32), output, (host, port)
        self.folder = folder
        command = [sys.executable, "-P", "-m", "fedgradnorm._flower.wire.flower"]
        command += ["--ssl-ca-certfile", str(folder / CA), "--isolation", "process"]
        command += ["--ssl-certfile", str(folder / SERVER_CERTIFICATE)]
        command += ["--ssl-keyfile", str(folder / SERVER_KEY), "--enable-supernode-auth"]
        command += ["--disable-runtime-dependency-installation", "--database", str(database)]
        self._command = [*command, "--host", host, "--port", str(port)]
        self._answer = answer

    def __enter__(self) -> SuperLink:
        self.check_free()
        own = zip(PASSED, (self.secret, str(os.getpid()), str(self._answer)), strict=True)
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                self._command,
                env={**os.environ, **QUIET, **dict(own)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def check_files(self) -> None:
        """A ConfigError unless the certificates and the server's key can be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.folder / SERVER_CERTIFICATE, self.folder / SERVER_KEY)
            context.load_verify_locations(self.folder / CA)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{self.folder}: {CA}, {SERVER_CERTIFICATE} or {SERVER_KEY} is missing or damaged "
                f"({why}); restore it from a backup, or make a new federation (fedgradnorm "
                "federation init)"
            ) from error

    def check_free(self) -> None:
        """A ConfigError that says why, unless a server may listen at the address now."""
        host, port = self.address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except (OSError, OverflowError, UnicodeError) as error:
                number = getattr(error, "errno", None) or 0
                why = WHY.get(number, str(getattr(error, "strerror", None) or error))
                raise ConfigError(
                    f"cannot listen on {host}:{port}: {why} ({FEDERATION})"
                ) from error

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
