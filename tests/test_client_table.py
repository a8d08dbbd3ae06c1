"""The client table: rows made on demand, one part per structure, saved and restored row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedgradnorm as fgn
import toys
from fedgradnorm._state.table import FIRST_LOSS, OWN, ClientTable, Part

NAMES = [f"{kind}-{k}" for kind in ("wide", "narrow") for k in range(4)]


def client(name: str) -> fgn.Client:
    return toys.client(name, 8, kind="corner")


class Counted:
    """A table whose clients have two numbers each, or three, and who was asked for a first row."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.asked: list[str] = []
        self.table = ClientTable(
            [client(name) for name in names],
            toys.CPU,
            key=self.width,
            new_part=lambda one: Part(
                one, {OWN: torch.zeros(self.width(one)), "extra": torch.ones(())}
            ),
            first_rows=self.first_rows,
        )

    @staticmethod
    def width(one: fgn.Client) -> int:
        return 3 if one.name.startswith("wide") else 2

    def first_rows(self, part: Part, clients: Sequence[fgn.Client]) -> dict[str, Tensor]:
        self.asked += [one.name for one in clients]
        numbers = [float(one.name[-1]) for one in clients]
        width = part.fresh[OWN].shape[0]
        return {OWN: torch.tensor(numbers)[:, None].expand(-1, width)}

    def move(self, names: Sequence[str], value: float) -> None:
        """Let clients participate: their numbers are ``value`` now."""
        for group in self.table.group(names):
            own = torch.full_like(group.part.rows[OWN][group.index], value)
            first = torch.ones(len(own), dtype=torch.float64)
            group.part.put(group.index, {OWN: own, FIRST_LOSS: first}, group.rows.tolist())

    def numbers(self) -> dict[str, list[float]]:
        return {name: self.table.state(name)[OWN].tolist() for name in self.table.clients}


def test_a_client_has_a_row_when_it_is_first_asked_for() -> None:
    made = Counted()
    assert made.asked == []
    assert made.table.parts == []
    made.table.group(["narrow-2", "wide-1"])
    made.table.group(["wide-1", "wide-3"])
    assert made.asked == ["narrow-2", "wide-1", "wide-3"]
    assert [len(part.names) for part in made.table.parts] == [1, 2]


def test_there_is_a_part_for_every_structure_and_groups_keep_the_order_asked_for() -> None:
    made = Counted()
    names = ["wide-3", "narrow-0", "wide-0", "narrow-3"]
    wide, narrow = made.table.group(names)
    assert (wide.names, narrow.names) == (["wide-3", "wide-0"], ["narrow-0", "narrow-3"])
    assert (wide.turns.tolist(), narrow.turns.tolist()) == ([0, 2], [1, 3])
    assert wide.part.rows[OWN][wide.index].tolist() == [[3.0] * 3, [0.0] * 3]
    assert narrow.part.rows[OWN][narrow.index].tolist() == [[0.0] * 2, [3.0] * 2]
    (one,) = made.table.group(["wide-0"])
    assert one.part is wide.part


def test_rows_stay_where_they_are_as_the_table_grows() -> None:
    names = [f"wide-{k}" for k in range(300)]
    made = Counted(names)
    for name in names:
        made.table.one(name)
        made.move([name], len(made.table.parts[0].names))
    assert [made.table.state(name)[OWN][0] for name in names] == list(range(1, 301))
    assert made.table.state("wide-7")["extra"] == 1


def test_what_changed_is_what_was_written_since_it_was_last_saved() -> None:
    made = Counted()
    made.table.group(NAMES)
    assert made.table.changed() == {"parts": []}
    assert made.table.known() == []
    made.move(["wide-2", "narrow-1"], 9.0)
    made.table.settle()
    made.move(["wide-1"], 8.0)
    assert [part["names"] for part in made.table.changed()["parts"]] == [["wide-1"]]
    assert made.table.count() == (1, 3)
    whole = made.table.changed(everything=True)
    assert [part["names"] for part in whole["parts"]] == [["wide-1", "wide-2"], ["narrow-1"]]
    assert made.table.known() == ["wide-1", "wide-2", "narrow-1"]


def test_pieces_that_were_saved_one_after_another_give_the_table_back() -> None:
    made, pieces = Counted(), []
    for names, value in ((["wide-2", "narrow-1"], 9.0), (["wide-2", "wide-0"], 8.0)):
        made.move(names, value)
        pieces.append(made.table.changed())
        made.table.settle()
    again = Counted()
    for piece in pieces:
        again.table.take(piece)
    assert again.numbers() == made.numbers()
    assert again.table.known() == made.table.known()
    made.move(["wide-2"], 7.0)  # what was saved is a copy
    assert again.table.state("wide-2")[OWN].tolist() == [8.0] * 3


def test_a_row_goes_to_another_table() -> None:
    made, other = Counted(), Counted()
    made.move(["wide-2"], 9.0)
    state = made.table.state("wide-2")
    other.table.load("wide-2", state)
    assert toys.same(other.table.state("wide-2"), state)
    assert other.table.count() == (1, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({OWN: torch.zeros(4)}, r"own of client 'wide-2' has shape \(4,\)"),
        ({"more": torch.zeros(1)}, "'more', or one too many"),
        ({"extra": None}, "'extra'"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    made = Counted()
    state = {k: v for k, v in (made.table.state("wide-2") | change).items() if v is not None}
    with pytest.raises(ValueError, match=words):
        made.table.load("wide-2", state)


def test_networks_of_their_own_are_for_those_who_have_one() -> None:
    made = Counted()
    network = torch.arange(5.0)
    state = made.table.state("wide-2")
    made.table.load("wide-2", {**state, "network": network})
    assert torch.equal(made.table.state("wide-2")["network"], network)
    assert made.table.network("wide-1") is None
    assert made.table.network("narrow-1") is None
    again = Counted()
    again.table.take(made.table.changed())
    assert torch.equal(again.table.network("wide-2"), network)
    made.table.load("wide-2", state)
    assert made.table.network("wide-2") is None


class TestOfAFederation:
    """The same through a federation."""

    def federation(self, **settings: Any) -> Any:
        return toys.federation(toys.noisy_network(torch.float64), toys.clients(), **settings)

    def test_a_state_that_is_loaded_puts_everybody_else_back_to_the_start(self) -> None:
        ours, fresh = self.federation(), self.federation()
        start = {name: toys.row(fresh, name) for name in toys.NAMES}
        fresh.round(0, ["corner"])
        state = fresh.state_dict()
        for number in range(3):
            ours.round(number, list(toys.NAMES))
        ours.load_state_dict(state)
        assert toys.same(toys.row(ours, "corner"), toys.row(fresh, "corner"))
        for name in ("side", "place"):
            assert np.isnan(float(toys.row(ours, name)[FIRST_LOSS]))
            assert toys.same(toys.row(ours, name), start[name])
        for one in (ours, fresh):
            one.round(1, list(toys.NAMES))
        assert toys.same(ours.state_dict(), fresh.state_dict())

    @pytest.mark.parametrize("executor", ["loop", "vmap"])
    def test_a_failing_clients_row_is_untouched(self, executor: str) -> None:
        """Also where it shares a part with others, and everything in it moves but for that row."""
        clients = [toys.client(name, 16, kind="place") for name in ("a", "b", "c")]
        clients[1].train[1][:] = torch.inf
        more = {
            "local_optimizer": {"name": "sgd", "momentum": 0.9, "keep": True},
            "shared_steps": 2,
            "sends": "model",
            "head_init": "random",
        }
        ours = toys.federation(
            toys.noisy_network(torch.float64), clients, executor=executor, **more
        )
        assert len(ours.engine.table.group(ours.names)) == 1
        before = {name: toys.row(ours, name) for name in ours.names}
        said, _ = ours.round(0, ours.names)
        assert list(said.failed) == ["b"]
        after = {name: toys.row(ours, name) for name in ours.names}
        assert toys.same(after["b"], before["b"])
        assert ours.engine.table.known() == ["a", "c"]
        for name in ("a", "c"):
            for key, value in after[name].items():
                assert not toys.same(value, before[name][key]), key
