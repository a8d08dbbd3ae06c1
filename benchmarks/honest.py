"""How near honest clients come to the server's bounds: the demo's, and MTFL's where it is there.

python benchmarks/honest.py [--only demo]

All clients tell the truth, in the loop engine, with the bounds of a deployed server. A row holds
the largest values of the whole run; a run in which nothing was cut is bit-for-bit the run without
bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from record import Row, about, begin, options, wanted, write
from torch import Tensor

from fedgradnorm._errors import DataError
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.bounds import Bounds, Cut
from fedgradnorm.experiments._config.config_file import build, clients_of, load_config
from fedgradnorm.weighting import Signals

CONFIGS = Path(__file__).parents[1] / "configs"
RUNS = {
    "demo": ("demo.toml", ["data.samples=16000"], 300),
    "MTFL": ("table2.toml", [], 47),  # one epoch
}
METHODS = ("fedrep", "fedgradnorm", "fedgradnorm-direct")


@dataclass(frozen=True)
class Watched(Bounds):
    """The bounds, and the largest values that they have seen."""

    largest: dict[str, float] = field(default_factory=dict)

    def clipped(self, signals: Signals) -> tuple[Signals, list[Cut]]:
        """As ever."""
        self.note("ratio", float(signals.loss_ratio[signals.active].max()))
        return super().clipped(signals)

    def limited(self, share: Tensor, length: Tensor, spread: float) -> tuple[Tensor, list[Cut]]:
        """As ever."""
        step = share.abs() * length
        self.note("share", float(step.max() / step[step > 0].median()))
        self.note("weight", float(share.abs().max() / share.abs().sum()))
        self.note("allowed share", spread)
        return super().limited(share, length, spread)

    def note(self, name: str, value: float) -> None:
        """Keep the larger one."""
        self.largest[name] = max(value, self.largest.get(name, 0.0))


def row(name: str, method: str, quick: bool) -> Row:
    """An honest run's largest values, and in how many of its rounds something was cut."""
    path, changes, rounds = RUNS[name]
    if quick:
        changes, rounds = [*changes, "data.samples=400"], 2
    config = load_config(CONFIGS / path, [*changes, f"method={method}", "compute.executor=loop"])
    network, clients, weighting, settings = build(config, clients_of(config))
    federation = Federation(network, clients, weighting, settings, torch.device("cpu"))
    federation.server.bounds = watched = Watched()
    cut = 0
    for number in range(rounds):
        federation.round(number, federation.names)
        cut += bool(federation.server.cuts)
    return {"data": name, "method": method, "rounds": rounds, "cut": cut, **watched.largest}


def main() -> None:
    given = options(__doc__).parse_args()
    begin(given)
    rows = []
    for name in RUNS:
        try:
            for method in METHODS if wanted(name, given) else ():
                rows.append(row(name, method, given.quick))
                print(rows[-1], flush=True)
        except DataError as error:
            print(f"{name} left out: {error}")
    columns = {
        "data": "data",
        "method": "method",
        "rounds": "rounds",
        "share": "largest share, in medians",
        "allowed share": "allowed",
        "weight": "largest part of the weights",
        "ratio": "largest loss ratio",
        "cut": "rounds cut",
    }
    write(given.out / "honest.json", about(), rows, columns)


if __name__ == "__main__":
    main()
