"""The assumption audit: what the paper's analysis asks for, and counterexamples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev

from fedgradnorm._client import Client
from fedgradnorm._round.settings import Compute, Evaluation, Local, Server
from fedgradnorm._training.train import train
from fedgradnorm.tasks._making import regression
from fedgradnorm.weighting import Equal
from studies.theory.findings import Claim, Finding, holds

TARGETS = (1.0, 2.0)


def f_grad(p: Tensor, norm: Tensor, target: Tensor) -> Tensor:
    """F_grad(p) = sum_i |p_i G_i - target_i|, the paper's loss of the weights."""
    return (p * norm - target).abs().sum()


def modulus(loss: Callable[[Tensor], Tensor], left: Tensor, right: Tensor) -> float:
    """The strong convexity a midpoint allows: mu <= 8 (mean - f(middle)) / |left - right|^2."""
    over = (loss(left) + loss(right)) / 2 - loss((left + right) / 2)
    return float(8 * over / (left - right).square().sum())


def weights_audit() -> Finding:
    """F_grad is piecewise linear: no strong convexity, and a slope that never fades."""
    norm = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    ratio = torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64)
    target = norm.mean() * (ratio / ratio.mean()) ** 0.9
    least = target / norm  # where F_grad = 0
    one, two = 0.2 * least, 0.8 * least  # both below: on one linear piece
    found = modulus(lambda p: f_grad(p, norm, target), one, two)
    near = least * (1 + 1e-9)
    slope = float(grad(f_grad)(near, norm, target).norm())
    claim = Claim(
        "A1",
        "Assumption: F_grad is strongly convex in p",
        holds(found > 1e-9),
        f"modulus {abs(found):.0e} between two points on one side of the minimum; 1e-9 "
        f"next to it the slope is still {slope:.1f}, so a constant step cannot come to rest",
        {"modulus": found, "slope": slope},
    )
    return Finding([claim])


def bilinear_loss(wh: Tensor, target: float) -> Tensor:
    """1/2 (h w - y)^2: a linear head on a linear representation, one number each."""
    return 0.5 * (wh[0] * wh[1] - target).square()


def head_audit(rounds: int = 120) -> Finding:
    """A linear head on a linear layer is bilinear: mirrored starts end in mirrored optima."""
    ends = {sign: _trained(sign, rounds) for sign in (1.0, -1.0)}
    (w_left, h_left, loss_left), (w_right, h_right, loss_right) = ends[1.0], ends[-1.0]
    middle = torch.stack([(w_left + w_right) / 2, (h_left[0] + h_right[0]) / 2])
    between = float(bilinear_loss(middle, TARGETS[0]))
    curvature = torch.linalg.eigvalsh(jacrev(grad(bilinear_loss))(middle, TARGETS[0]))
    worst = max(loss_left, loss_right)
    claim = Claim(
        "A2",
        "Assumption: the loss is (strongly) convex in shared network and head together",
        holds(between <= worst + 1e-9),
        f"mirrored starts end at w = {float(w_left):+.3f} and {float(w_right):+.3f} with losses "
        f"below {max(worst, 1e-16):.0e}; halfway between the loss is {between:.2f}, least "
        f"curvature {float(curvature[0]):.2f}",
        {"between": between, "ends": worst, "curvature": float(curvature[0]),
         "distance": float((w_left - w_right).abs())},
    )  # fmt: skip
    return Finding([claim])


def _trained(sign: float, rounds: int) -> tuple[Tensor, Tensor, float]:
    """w, heads and the largest loss after training two clients from a start of this sign."""

    def layer(value: float) -> nn.Linear:
        made = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(made.weight, value)
        return made

    one = torch.ones(2, 1, dtype=torch.float64)
    clients = [
        Client(f"y = {y:g}", regression(1, loss_scale=0.5), train=(one, y * one), head=layer(sign))
        for y in TARGETS
    ]
    plain = {"name": "sgd", "lr": 0.2}
    run = train(
        layer(sign),
        clients,
        weighting=Equal(),
        rounds=rounds,
        local=Local(batch_size=None, head_optimizer=plain),
        server=Server(server_optimizer=plain),
        compute=Compute(device="cpu", executor="loop"),
        callbacks=[Evaluation(every=0)],
    )
    assert run.network is not None
    w = next(run.network.parameters()).detach().flatten()[0]
    heads = torch.stack(
        [next(run.heads[c.name].parameters()).detach().flatten()[0] for c in clients]
    )
    losses = [bilinear_loss(torch.stack([w, h]), y) for h, y in zip(heads, TARGETS, strict=True)]
    return w, heads, float(max(losses))
