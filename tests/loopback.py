"""Run a command where there is no network but loopback, and see that there is none.

``run_inside`` makes namespaces of its own for it, in which ``python loopback.py COMMAND`` switches
lo on, gives host names loopback addresses and writes down what it sees before the command begins.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

# Network, hosts file and processes of its own: whatever was started in there ends with it.
OWN = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# As root, or as anybody where the kernel lets users be root in a namespace of theirs.
WAYS = (("unshare", *OWN), ("unshare", "--map-root-user", *OWN))
HOSTS, SEEN = "LOOPBACK_HOSTS", "LOOPBACK_SEEN"
ELSEWHERE = ("192.0.2.1", "10.0.0.1", "2001:db8::1")  # for documentation, or private
NO_WAY = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def run_inside(*command: object, seen: Path, hosts: Mapping[str, str] | None = None) -> str:
    """What the command said; the test is skipped where namespaces are forbidden.

    ``seen`` is the file for what there was to see, ``hosts`` are names and their addresses.
    """
    way = way_inside()
    if isinstance(way, str):
        pytest.skip(f"network namespaces are forbidden here: {way}")
    return run_by(way, *command, seen=seen, hosts=hosts)


def run_by(
    way: tuple[str, ...], *command: object, seen: Path, hosts: Mapping[str, str] | None = None
) -> str:
    """What the command said, in namespaces of its own, or here where there is no way to any."""
    words = [*way, sys.executable, __file__, *map(str, command)] if way else [*map(str, command)]
    more = {HOSTS: json.dumps(hosts or {}), SEEN: str(seen), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words,
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def assert_alone(seen: Path) -> None:
    """Only lo was there, and no way to anywhere else."""
    assert json.loads(seen.read_text()) == {"interfaces": ["lo"], "loopback": True, "elsewhere": []}


def way_inside() -> tuple[str, ...] | str:
    """The command that makes namespaces, or why there is none."""
    said = "no command 'unshare'"
    for way in WAYS if shutil.which("unshare") else ():
        tried = subprocess.run(
            [*way, sys.executable, __file__, "true"], capture_output=True, text=True
        )
        if tried.returncode == 0:
            return way
        said = tried.stderr.strip().splitlines()[-1]
    return said


def switch_on() -> None:
    """``ip link set lo up``, for where there is no ``ip``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack_from("16sh", asked)[1] | IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def name_hosts(hosts: Mapping[str, str]) -> None:
    """Lay a hosts file of our own over the machine's, for the processes in here."""
    names = {"localhost": "127.0.0.1", socket.gethostname(): "127.0.0.1", **hosts}
    with tempfile.NamedTemporaryFile("w", suffix=".hosts") as file:
        file.write("".join(f"{address} {name}\n" for name, address in names.items()))
        file.flush()
        subprocess.run(["mount", "--bind", file.name, "/etc/hosts"], check=True)


def reachable(address: str) -> bool:
    """Whether there is a way to an address; no packet is sent to find out."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError as error:
        if error.errno not in NO_WAY:
            raise
        return False
    return True


def look_around() -> dict[str, object]:
    """The interfaces here, and which of a few addresses elsewhere there is a way to."""
    return {
        "interfaces": [name for _, name in socket.if_nameindex()],
        "loopback": reachable("127.0.0.1"),
        "elsewhere": [address for address in ELSEWHERE if reachable(address)],
    }


if __name__ == "__main__":
    switch_on()
    name_hosts(json.loads(os.environ.pop(HOSTS, "{}")))
    seen = os.environ.pop(SEEN, "")
    if seen:
        Path(seen).write_text(json.dumps(look_around()))
    os.execvp(sys.argv[1], sys.argv[1:])
