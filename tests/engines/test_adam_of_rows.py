"""Adam of many networks at once: moments are rows, and each network's own optimiser has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import fedgradnorm as fgn
import stretch
from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines.passes.adam_of_rows import AdamOfRows, adam_of_rows
from fedgradnorm._federation.alone import SideBySide
from fedgradnorm._training.trainer import Trainer
from side_by_side import assert_same_training, clients, mlp, trainer

STEPS: list[int] = []


class InPython(AdamOfRows):
    """The same with the plain step instead of the kernel, which needs a GPU."""

    def _step(
        self,
        vectors: Tensor,
        gradients: Tensor,
        moments: tuple[Tensor, Tensor],
        counts: Tensor,
        how: Mapping[str, Any],
    ) -> None:
        STEPS.append(len(vectors))
        options = how["lr"], *how["betas"], how["eps"]
        for row, (x, gradient) in enumerate(zip(vectors, gradients, strict=True)):
            count = counts[row] - 1  # the plain step counts, too
            optimizers.adam(x, gradient, moments[0][row], moments[1][row], count, *options)


def with_rows(made: Trainer) -> Trainer:
    federations = made.federations
    assert isinstance(federations, SideBySide)
    owners = [server.optimizer for server in federations._in_order()]
    federations._adam = InPython(federations._run.vectors, owners)
    STEPS.clear()
    return made


def pair(**how: Any) -> tuple[Trainer, Trainer]:
    how = {"eval_every": 0, "rounds": 12, **how}
    rows, loop = (trainer(mlp(), clients(), engine, **how) for engine in ("auto", "loop"))
    return with_rows(rows), loop


def played(made: Trainer, until: int) -> Trainer:
    while made.round < until:
        made.advance()
    return made


@pytest.mark.parametrize("weighting", [fgn.Equal, fgn.GradNorm], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("how", [{}, {"shared_steps": 2}, {"server_schedule": "cosine"}], ids=str)
def test_rows_step_as_each_network_by_itself(weighting: Any, how: dict[str, Any]) -> None:
    rows, loop = (played(one, 12) for one in pair(weighting=weighting, **how))
    assert STEPS == [6] * 11  # the first step is torch's, which makes the moments
    assert_same_training(rows, loop)


def test_moments_that_were_loaded_are_put_into_their_rows() -> None:
    rows, loop = pair()
    for one in (rows, loop):
        played(one, 5)
        one.federations[2].load_state_dict(one.federations[2].state_dict())
        played(one, 12)
    assert len(STEPS) == 11
    assert_same_training(rows, loop)


def test_moments_that_were_loaded_before_rounds_come_at_once_are_in_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stretch.use_graphs(monkeypatch)
    rows, loop = pair(rounds=14)
    for one in (rows, loop):
        played(one, 4)
        one.federations[2].load_state_dict(one.federations[2].state_dict())
        while one.round < 14:
            one.advance(5)
    assert_same_training(rows, loop)
    moments = [next(iter(one.server.optimizer.state.values())) for one in rows.federations]
    kept = {moment["exp_avg"].untyped_storage().data_ptr() for moment in moments}
    assert len(kept) == 1


def test_those_who_are_left_and_those_who_fail_step_by_themselves() -> None:
    rows, loop = pair(participation=0.5)
    assert_same_training(played(rows, 12), played(loop, 12))
    rows, loop = pair()
    for one in (rows, loop):
        played(one, 5)
        one.federations[1].server.shared.data.fill_(torch.inf)
        played(one, 12)
    assert len(STEPS) == 4
    assert_same_training(rows, loop)


def test_a_state_holds_one_networks_moments_alone() -> None:
    rows = played(pair()[0], 4)
    for federation in rows.federations:
        (moments,) = federation.state_dict()["server"]["optimizer"]["state"].values()
        for moment in moments.values():
            assert moment.untyped_storage().nbytes() == moment.numel() * moment.element_size()


def test_a_resumed_run_is_the_uninterrupted_one() -> None:
    whole, half = pair()[0], pair()[0]
    played(whole, 12)
    state, again = played(half, 6).state_dict(), pair()[0]
    again.load_state_dict(state)
    assert STEPS == []
    played(again, 12)
    for one, other in zip(whole.federations, again.federations, strict=True):
        assert torch.equal(one.server.shared, other.server.shared)


def test_there_is_no_kernel_on_a_cpu() -> None:
    vectors = torch.zeros(2, 3)
    owners = [torch.optim.Adam([torch.nn.Parameter(row)]) for row in vectors]
    assert adam_of_rows(vectors, owners) is None


@pytest.mark.parametrize("option", ["amsgrad", "maximize"])
def test_rarer_options_are_left_to_torch(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    vectors = torch.zeros(2, 3)
    parameter = torch.nn.Parameter(vectors[0])
    assert AdamOfRows.fits(vectors, torch.optim.Adam([parameter]))
    assert AdamOfRows.fits(vectors, torch.optim.Adam([parameter], weight_decay=0.1))
    assert not AdamOfRows.fits(vectors, torch.optim.Adam([parameter], **{option: True}))
    assert not AdamOfRows.fits(vectors, torch.optim.SGD([parameter], lr=0.1))
