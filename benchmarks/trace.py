"""How many functions and files of the package the set-up of a run and one of its rounds visit.

    python benchmarks/trace.py [--list]

Five clients share a small network, with default settings. The set-up is ``fgn.train`` up to the
first evaluation. The round is one without an evaluation, from the end of the round before it. Each
function counts once; class bodies, comprehensions, generator expressions and lambdas do not count.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import fedgradnorm as fgn

PACKAGE = Path(fgn.__file__).parent
FIRST, LAST = 3, 4  # the traced round lies between these two

Calls = set[CodeType]


class Trace(fgn.Callback):
    """Collects the functions that a run calls, from :meth:`start` on."""

    def __init__(self) -> None:
        self.parts: dict[str, Calls] = {}
        self._calls = Calls()

    def start(self) -> None:
        """Collect from here on."""
        self._calls = Calls()
        sys.setprofile(self._note)

    def stop(self, part: str) -> None:
        """What was called since :meth:`start` is this part of the run."""
        sys.setprofile(None)
        self.parts[part] = self._calls

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<")
        if event == "call" and ours:
            self._calls.add(code)

    def on_start(self, state: Any) -> None:  # noqa: ARG002
        """The set-up is over."""
        self.stop("set-up")

    def on_round(self, state: Any) -> None:
        """Trace one round."""
        if state.round == FIRST:
            self.start()
        elif state.round == LAST:
            self.stop("one default round")


def trace() -> dict[str, Calls]:
    """The functions of the set-up and of a round."""
    torch.manual_seed(0)
    task = fgn.regression(2)
    clients = [
        fgn.Client(f"c{k}", task, (torch.randn(64, 6), torch.randn(64, 2))) for k in range(5)
    ]
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU())
    for _ in range(2):  # the first run imports modules, which would count
        seen = Trace()
        seen.start()
        fgn.train(network, clients, rounds=LAST + 1, callbacks=[fgn.Evaluation(every=0), seen])
    return seen.parts


def place(code: CodeType) -> str:
    """File and name of a function."""
    return f"{Path(code.co_filename).relative_to(PACKAGE)}  {code.co_qualname}"


def main() -> None:
    """Print the two counts; with --list also the functions."""
    parser = argparse.ArgumentParser(description="functions and files that a run visits")
    parser.add_argument("--list", action="store_true", help="name every function")
    listed = parser.parse_args().list
    for part, codes in trace().items():
        files = {code.co_filename for code in codes}
        print(f"{part:<20}{len(codes):4} functions in {len(files):3} files")
        if listed:
            print(*sorted(map(place, codes)), sep="\n")


if __name__ == "__main__":
    main()
