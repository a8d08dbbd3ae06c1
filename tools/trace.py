"""Which of our functions and files a run's set-up and one default round visit.

A round that takes few functions in few files can be read in one sitting. Run it from the
repository: ``python tools/trace.py`` prints the counts, ``--list`` the functions too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import fedgradnorm as fgn

SOURCE = str(Path(fgn.__file__).parent)
INNER = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>"}


class Visits(fgn.Callback):
    """Counts set-up until the first round starts, then the second round by itself."""

    def __init__(self) -> None:
        self.setup: set[tuple[str, str]] = set()
        self.round: set[tuple[str, str]] = set()

    def on_start(self, state: object) -> None:  # noqa: ARG002
        """Training starts: nothing of a round has happened."""
        sys.setprofile(None)

    def on_round(self, state: object) -> None:
        """The first round creates what later ones reuse, so the second is the one counted."""
        number = state.round  # type: ignore[attr-defined]
        sys.setprofile(self.visitor(self.round) if number == 1 else None)

    @staticmethod
    def visitor(found: set[tuple[str, str]]) -> Callable[[FrameType, str, object], None]:
        """A profile function that notes every function of ours that is called."""

        def note(frame: FrameType, event: str, _: object) -> None:
            code = frame.f_code
            ours = event == "call" and code.co_filename.startswith(SOURCE)
            if ours and code.co_name not in INNER:
                found.add((code.co_filename.removeprefix(SOURCE), code.co_qualname))

        return note


def traced() -> Visits:
    """Three clients with two kinds of tasks and enough examples that no round evaluates."""
    x = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
    clients = [
        fgn.Client("sign", fgn.classification(2), train=(x, (x[:, 0] > 0).long())),
        fgn.Client("order", fgn.classification(3), train=(x, x[:, :3].argmax(dim=1))),
        fgn.Client("sum", fgn.regression(1), train=(x, x.sum(dim=1, keepdim=True))),
    ]
    network = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU())
    fgn.train(network, clients, method="fedgradnorm", rounds=1)  # imports, outside the count
    visits = Visits()
    sys.setprofile(visits.visitor(visits.setup))
    fgn.train(network, clients, method="fedgradnorm", rounds=3, callbacks=[visits])
    sys.setprofile(None)
    return visits


def main() -> None:
    """Print the counts, and with ``--list`` every function."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every function")
    listed = parser.parse_args().list
    visits = traced()
    for what, found in (("set-up", visits.setup), ("one round", visits.round)):
        print(f"{what}: {len(found)} functions in {len({file for file, _ in found})} files")
        for file, name in sorted(found) if listed else ():
            print(f"  {file.lstrip('/')}: {name}")


if __name__ == "__main__":
    main()
