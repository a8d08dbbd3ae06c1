"""What one lying client of five does to the others, with and without the server's bounds.

python benchmarks/liars.py

The real coordinator, the real messages and checks, in one process; only the liar's answer is
changed before it is sent. A cell is the mean test accuracy of the four honest clients; 0.5 is
guessing. A lie that a method does not ask for is left out.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping

import numpy as np
import torch
from record import Row, about, begin, options, wanted, write
from torch import Tensor, nn

import fedgradnorm as fgn
from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines import Engine, Problem, make_engine
from fedgradnorm._federation.heads import HeadsOnDemand
from fedgradnorm._flower.agreement import Agreement, sent_scalars
from fedgradnorm._flower.attendance import Patience
from fedgradnorm._flower.coordinator import Coordinator
from fedgradnorm._flower.group_heads import GroupHeads
from fedgradnorm._flower.wire.messages import Answer, Order, encode_answer
from fedgradnorm._methods import find_method
from fedgradnorm._round.bounds import Bounds
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._norm_layer import find_norm_layer
from fedgradnorm.weighting import Needs, Weighting

FEATURES, LIAR, ROUNDS = 10, "e", 150
PAIRS = {"a": (0, 1), "b": (2, 3), "c": (4, 5), "d": (6, 7), LIAR: (8, 9)}
METHODS = ("fedrep", "fedgradnorm", "fedgradnorm-direct", "krum", "trimmed-mean")
BOUNDS = {
    "largest_share = 1": Bounds(share=1),
    "default": Bounds(),
    "none": None,
}  # from tight to none
Said = dict[str, float]
Lie = Callable[[Tensor, Said, Tensor, Tensor], tuple[Tensor, Said]]


def clients(seed: int, rows: int) -> list[fgn.Client]:
    """Five clients; each must tell the sign of the product of two inputs of its own."""
    found = []
    for name, (i, j) in PAIRS.items():
        x = np.random.default_rng([seed, ord(name)]).normal(size=(rows + 1000, FEATURES))
        y = (x[:, i] * x[:, j] > 0).astype(np.int64)
        x = x.astype(np.float32)
        train, test = (x[:rows], y[:rows]), (x[rows:], y[rows:])
        found.append(fgn.Client(name, fgn.classification(2), train=train, test=test))
    return found


def scaled(factor: float) -> Lie:
    """The true update times a factor."""
    return lambda update, said, _shared, _norm_layer: (factor * update, said)


def boasting(
    update: Tensor, said: Said, _shared: Tensor, _norm_layer: Tensor
) -> tuple[Tensor, Said]:
    """The update turned round, and a loss that is said to be a million times the first."""
    return -update, {**said, "loss_ratio": 1e6}


def hiding(update: Tensor, said: Said, _shared: Tensor, norm_layer: Tensor) -> tuple[Tensor, Said]:
    """Turned round, and hardly anything of it on the norm layer."""
    update = -update
    update[norm_layer] *= 1e-3
    return update, said


def erasing(
    _update: Tensor, said: Said, shared: Tensor, _norm_layer: Tensor
) -> tuple[Tensor, Said]:
    """Toward the network that is all zero."""
    return shared.clone(), said


LIES: Mapping[str, Lie] = {
    "no lie": scaled(1),
    "sign flip x1": scaled(-1),
    "sign flip x100": scaled(-100),
    "scale x100": scaled(100),
    "loss_ratio 1e6": boasting,
    "tiny gradient norm": hiding,
    "steer to zero": erasing,
}


class Liars:
    """All clients in one engine; the liar's answer is changed, then all are encoded."""

    def __init__(self, engine: Engine, scalars: tuple[str, ...], lie: Lie) -> None:
        self.engine, self.scalars, self.lie = engine, scalars, lie
        self.ordered: dict[str, int] = {}
        self.seconds, self.seen = dict[str, float](), dict[str, float]()

    def ask(self, orders: Mapping[str, Order], _seconds: float) -> dict[str, bytes]:
        """Every client's answer as it would travel."""
        first = next(iter(orders.values()))
        reports = self.engine.run_clients(first.shared, first.round, list(orders))
        rows = {name: row for row, name in enumerate(self.engine.clients)}
        return {
            name: encode_answer(self._answer(name, order, reports, rows[name]))
            for name, order in orders.items()
        }

    def online(self) -> list[str]:
        """Everybody is."""
        return list(self.engine.clients)

    def _answer(self, name: str, order: Order, reports: Reports, row: int) -> Answer:
        update = reports.gradients()[row]
        said = {key: float(getattr(reports, key)[row]) for key in self.scalars}
        if name == LIAR:
            update, said = self.lie(update, said, order.shared, self.engine.norm_layer)
            if "grad_norm" in said:  # a false one would be refused: the server measures it
                said["grad_norm"] = float(update[self.engine.norm_layer].double().norm())
        return Answer(order.run, order.round, order.state_round + 1, update, said)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())


def federation(
    weighting: Weighting, lie: Lie, bounds: Bounds | None, settings: Settings, rows: int
) -> Coordinator:
    """The server and its clients, of whom one lies."""
    everybody, shared = clients(settings.seed, rows), network(settings.seed)
    weighting.bind(list(PAIRS))
    assert settings.rounds is not None
    agreement = Agreement(settings, settings.rounds, sent_scalars(weighting, settings), "agreed")
    heads = HeadsOnDemand(shared, everybody, settings)
    heads.make_all()
    problem = Problem(
        shared,
        everybody,
        heads,
        find_norm_layer(shared, torch.zeros(2, FEATURES), None),
        settings.local(),
        torch.device("cpu"),
        settings.batch_size,
        settings.seed,
        Needs.GRADIENT,
    )
    engine = make_engine("vmap", problem)
    optimizer = optimizers.resolve("adam", settings.lr)
    server = ServerState(FlatNetwork(shared).vector, weighting, optimizer, bounds=bounds)
    exchange = Liars(engine, agreement.scalars, lie)
    own = GroupHeads(list(PAIRS), {}, settings, None, torch.float32)
    given = (server, list(PAIRS), agreement, exchange, Patience(), own)
    return Coordinator(*given, engine.norm_layer)


def outcome(method: str, lie: str, bounds: Bounds | None, quick: bool) -> tuple[float, bool]:
    """The honest clients' mean test accuracy after the run, and whether anybody was bounded."""
    settings = Settings(rounds=3 if quick else ROUNDS, lr=0.01, device="cpu", head_init="random")
    weighting = find_method(method).build({})
    coordinator = federation(weighting, LIES[lie], bounds, settings, 200 if quick else 2000)
    while not coordinator.done:
        coordinator.advance()
    exchange = coordinator.exchange
    assert isinstance(exchange, Liars)
    values = exchange.engine.evaluate(coordinator.server.shared.data, "test")
    right = statistics.fmean(values[name]["accuracy"] for name in PAIRS if name != LIAR)
    return right, any(coordinator.bounded.values())


def rows_of(method: str, quick: bool) -> list[Row]:
    """A row for each kind of bounds. What the tight ones left alone, no looser ones change."""
    rows: dict[str, Row] = {name: {"method": method, "bounds": name} for name in BOUNDS}
    asked = sent_scalars(find_method(method).build({}), Settings())
    for lie in LIES:
        if lie == "loss_ratio 1e6" and "loss_ratio" not in asked:
            continue
        right, bounded = 0.0, True
        for name, bounds in BOUNDS.items():
            if bounded:
                right, bounded = outcome(method, lie, bounds, quick)
            rows[name][lie] = round(right, 3)
        print(method, lie, *(row[lie] for row in rows.values()), flush=True)
    return [rows[name] for name in reversed(rows)]


def main() -> None:
    given = options(__doc__).parse_args()
    begin(given)
    logging.getLogger("fedgradnorm").setLevel(logging.ERROR)
    rows = [row for m in METHODS if wanted(m, given) for row in rows_of(m, given.quick)]
    columns = {"method": "method", "bounds": "bounds", **{lie: lie for lie in LIES}}
    here = {**about(), "rounds": ROUNDS, "clients": len(PAIRS), "lying": 1, "seed": 0}
    write(given.out / "liars.json", here, rows, columns)


if __name__ == "__main__":
    main()
