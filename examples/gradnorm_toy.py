"""GradNorm's own toy: tasks that differ in nothing but loudness (Chen et al. 2018, section 4).

    python examples/gradnorm_toy.py                 # two and ten tasks, three seeds
    python examples/gradnorm_toy.py --steps 300 --seeds 1 --tasks 2 --batch 32

Task i is to learn f_i(x) = sigma_i tanh((B + eps_i) x / (10 sqrt 50)), x from N(0, 1) in 50
dimensions, B from N(0, 10^2) shared by all tasks, eps_i from N(0, 3.5^2) its own, 20 outputs. No
row is seen twice. The paper does not name its batch; how many rows are seen decides how far all
weightings get, see docs/methods.md.
With equal weights the loudest task takes the shared trunk for itself. Each task's test loss over
its first one says how much is left to learn, whatever its loudness; the table shows their sum.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import torch
from torch import nn

import fedgradnorm as fgn

INPUTS, OUTPUTS, WIDTH = 50, 20, 50
LOUDNESS = {2: (1.0, 100.0), 10: (1.0, 50.0, 30.0, 70.0, 20.0, 80.0, 10.0, 40.0, 60.0, 100.0)}


def tasks(sigmas: tuple[float, ...], seed: int, rows: int) -> list[fgn.Client]:
    """One client per task; all see the same inputs."""
    generator = np.random.default_rng(seed)
    common = generator.normal(scale=10, size=(INPUTS, OUTPUTS))
    x, x_test = generator.normal(size=(rows, INPUTS)), generator.normal(size=(2_000, INPUTS))
    clients = []
    for i, sigma in enumerate(sigmas):
        own = common + generator.normal(scale=3.5, size=(INPUTS, OUTPUTS))

        def target(inputs: np.ndarray, own: np.ndarray = own, sigma: float = sigma) -> np.ndarray:
            return sigma * np.tanh(inputs @ own / (10 * math.sqrt(INPUTS)))

        name = f"task {i} (sigma {sigma:g})"
        data = {"train": (x, target(x)), "test": (x_test, target(x_test))}
        clients.append(fgn.Client(name, fgn.regression(OUTPUTS), **data))
    return clients


def trunk(seed: int) -> nn.Module:
    """Four hidden layers of 50."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for width in (INPUTS, WIDTH, WIDTH, WIDTH):
        layers += [nn.Linear(width, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def train(
    sigmas: tuple[float, ...],
    weighting: fgn.Weighting,
    seed: int,
    steps: int,
    batch: int = 48,
) -> tuple[float, dict[str, float]]:
    """Sum of the test loss ratios, and the weights: they chatter, so means of the last tenth."""
    clients = tasks(sigmas, seed, steps * batch)
    run = fgn.train(
        trunk(seed), clients,
        weighting=weighting,
        rounds=steps,
        local=fgn.Local(batch_size=batch, phases="joint"),
        lr=1e-3,
        server=fgn.Server(step_with="previous"),
        sharing=fgn.Sharing(head_init="random"),
        callbacks=[fgn.Evaluation(every=0)],
        seed=seed,
    )  # fmt: skip
    test = run.history[run.history.split == "test"].groupby("client").loss
    weight = run.history[run.history["round"] > 0.9 * steps].groupby("client").weight.mean()
    return float((test.last() / test.first()).sum()), {c.name: weight[c.name] for c in clients}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--steps", type=int, default=3000)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--batch", type=int, default=48)
    options.add_argument("--tasks", type=int, nargs="*", choices=sorted(LOUDNESS), default=[2, 10])
    given = options.parse_args()
    print("| tasks | seed | equal | GradNorm | direct | weight of the loudest (GradNorm, direct) |")
    print("|---|---|---|---|---|---|")
    for count in given.tasks:
        for seed in range(given.seeds):
            cells, loudest = [], []
            for weighting in (
                fgn.Equal(),
                fgn.GradNorm(gamma=0.12, lr=0.025),
                fgn.GradNorm(gamma=0.12, rule="direct"),
            ):
                total, weights = train(LOUDNESS[count], weighting, seed, given.steps, given.batch)
                cells.append(f"{total:.3f}")
                loudest.append(list(weights.values())[int(np.argmax(LOUDNESS[count]))])
            shown = ", ".join(f"{weight:.3f}" for weight in loudest[1:])
            print(f"| {count} | {seed} | {' | '.join(cells)} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
