"""Do what a page says, in order, as its readers would: ``walkthrough.py PAGE HEADING FOLDER``.

Behind the language, each fence under that heading says whose machine it is for and, where it is not
simply run to its end, how it is run. A machine is a folder, empty at first.

    bash north south     on both, at once
    bash node0 meanwhile continues while the next run, and must end well
    bash north forever   continues until the page is over
    bash server stopped  Ctrl-C after two rounds
    python north         a program
    toml server north    a file of that text, called what its first line says
    text north           lines that north's commands must have said; ``...`` stands for anything
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PATIENCE = 600  # seconds for a fence, on a busy machine
HOWS = ("meanwhile", "forever", "stopped")
# All that is changed in what the page says: fewer rounds and rows, for the same way to go.
SHORTER = {
    "rounds = 200": "rounds = 5",
    "rounds=20": "rounds=2",
    "run demo": "run demo data.samples=3000",
    "try demo": "try demo data.samples=3000",
}


@dataclass(frozen=True)
class Fence:
    """A fenced block of the page; without a language it is not one of these, but a mistake."""

    language: str
    machines: list[str]
    how: str
    text: str


def fences(page: Path, heading: str = "") -> list[Fence]:
    """The page's fences, or those of one of its chapters."""
    text = page.read_text(encoding="utf-8")
    if heading:
        (text,) = (c for c in re.split(r"^## ", text, flags=re.M) if c.startswith(heading))
    found = re.findall(r"^```(.*)\n((?:.*\n)*?)```$", text, flags=re.M)
    return [_fence(info.split(), body) for info, body in found]


def _fence(info: list[str], text: str) -> Fence:
    how = next((word for word in info if word in HOWS), "")
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return Fence(info[0] if info else "", [w for w in info[1:] if w not in HOWS], how, text)


class Walk:
    """The machines, and what runs on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meanwhile: list[subprocess.Popen[bytes]] = []
        self.forever: list[subprocess.Popen[bytes]] = []
        self.promised: list[Fence] = []

    def machine(self, name: str) -> Path:
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def take(self, fence: Fence) -> None:
        """Do one fence."""
        if fence.language == "toml":
            name = fence.text.split()[1]
            for machine in fence.machines:
                (self.machine(machine) / name).write_text(fence.text, encoding="utf-8")
        elif fence.language == "text":
            self.promised.append(fence)
        else:
            self._run(fence)
            self._carry()

    def _run(self, fence: Fence) -> None:
        began = time.monotonic()
        started = [self._started(name, fence) for name in fence.machines]
        if fence.how == "forever":
            self.forever += started
        elif fence.how == "meanwhile":
            self.meanwhile += started
        elif fence.how == "stopped":
            self._stop(fence.machines[0], started[0])
        else:
            for process in [*started, *self.meanwhile]:
                assert process.wait(PATIENCE) == 0, f"failed: {fence}"
            self.meanwhile.clear()
        first = fence.text.splitlines()[0]
        print(f"{time.monotonic() - began:6.1f} s  {' '.join(fence.machines)}: {first}")

    def _started(self, machine: str, fence: Fence) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-c"] if fence.language == "python" else ["bash", "-exc"]
        place = self.machine(machine)
        with (self.folder / f"{machine}.log").open("ab") as log:
            return subprocess.Popen(
                [*program, fence.text],
                cwd=place,
                env={**os.environ, "PATH": PATH, "COLUMNS": "200"},
                stdout=log,
                stderr=log,
                start_new_session=True,  # as in a terminal of its own: Ctrl-C reaches all of it
            )

    def _stop(self, machine: str, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + PATIENCE
        while self._rounds(machine) < 2:
            assert process.poll() is None, f"{machine}: ended before its second round"
            assert time.monotonic() < end, f"{machine}: no second round"
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE)

    def _rounds(self, machine: str) -> int:
        """Rounds in the tables of this machine's runs."""
        tables = self.machine(machine).glob("runs/*/metrics.csv")
        lines = [line for table in tables for line in table.read_text().splitlines()[1:]]
        return max((int(line.split(",")[0]) for line in lines), default=0)

    def _carry(self) -> None:
        """What people do by hand: archives go to the machine named, public keys to the server."""
        for archive in self.folder.glob("*/*.tar.gz"):
            owner = archive.name.removesuffix(".tar.gz")
            if archive.parent.name != owner:
                archive.rename(self.machine(owner) / archive.name)
        for public in self.folder.glob("*/*.public.toml"):
            if public.parent.name != "server":
                (self.machine("server") / public.name).write_bytes(public.read_bytes())

    def end(self) -> None:
        """Ctrl-C for what runs forever; everything promised must have been said by then."""
        for process in self.forever:
            assert process.poll() is None, "what should run until it is stopped has ended"
            os.killpg(process.pid, signal.SIGINT)
        for process in self.forever:
            process.wait(PATIENCE)
        for fence in self.promised:
            for machine in fence.machines:
                said = " ".join((self.folder / f"{machine}.log").read_text().split())
                for line in fence.text.splitlines():
                    wanted = re.escape(" ".join(line.split())).replace(r"\.\.\.", ".*")
                    assert re.search(wanted, said), f"{machine} did not say: {line}\n{said}"


if __name__ == "__main__":
    walk = Walk(Path(sys.argv[3]))
    try:
        for fence in fences(Path(sys.argv[1]), sys.argv[2]):
            walk.take(fence)
        walk.end()
    except BaseException:
        for log in sorted(walk.folder.glob("*.log")):
            print(f"--- {log.stem}", log.read_text(), sep="\n")
        raise
