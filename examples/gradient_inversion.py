"""Read a training row out of what one client sends, and see where that fails.

    python examples/gradient_inversion.py --out docs/images/gradient-inversion.png

A client's batch is one drawn face, and the first layer of the network is linear: z = W x + b. The
gradient of any loss on one row is dW = d x^T and db = d, so that each of the layer's outputs gives
the whole row away: x = dW[k] / db[k]. The same is tried on the sum over clients, which is all that
a server sees under secure aggregation, and on the update of a client that promises privacy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedgradnorm as fgn
from fedgradnorm.data import faces

SIZE, CLIENTS = 40, 10
# Seeded, so that the picture is always the same; for a promise, leave noise out.
PRIVACY = fgn.Privacy(epsilon=8, delta=1e-5, loss_share=0.0, noise="seeded")
ONE_STEP = {"name": "sgd", "lr": 1.0}  # the new network is the old one less the update


def clients(privacy: fgn.Privacy | None = None) -> list[fgn.Client]:
    """Clients of one face each."""
    (drawn,) = faces.clients(
        samples=CLIENTS, test_samples=CLIENTS, allocation=[CLIENTS], tasks=["landmark"], seed=3
    )
    x, y = drawn.train[0].flatten(1), drawn.train[1] / SIZE
    return [
        fgn.Client(f"c{i}", fgn.regression(10), train=(x[i : i + 1], y[i : i + 1]), privacy=privacy)
        for i in range(CLIENTS)
    ]


def update(who: Sequence[fgn.Client]) -> dict[str, torch.Tensor]:
    """What the server gets of one round: the mean update of these clients, by parameter."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(SIZE * SIZE, 32), nn.Tanh())
    run = fgn.train(
        network, who,
        weighting=fgn.Equal(),
        rounds=1,
        local=fgn.Local(batch_size=1, head_steps=0),
        server=fgn.Server(server_optimizer=ONE_STEP),
        sharing=fgn.Sharing(head_init="random"),
        callbacks=[fgn.Evaluation(every=0)],
    )  # fmt: skip
    assert run.network is not None
    after = dict(run.network.named_parameters())
    return {name: (p - after[name]).detach() for name, p in network.named_parameters()}


def invert(gradient: dict[str, torch.Tensor]) -> np.ndarray:
    """x = dW[k] / db[k], by the output k with the largest db."""
    weight, bias = gradient["0.weight"].double(), gradient["0.bias"].double()
    k = int(bias.abs().argmax())
    return (weight[k] / bias[k]).reshape(SIZE, SIZE).numpy()


def likeness(found: np.ndarray, true: np.ndarray, usual: np.ndarray) -> float:
    """Correlation of what tells the face from the mean of all faces."""
    return float(np.corrcoef((found - usual).ravel(), (true - usual).ravel())[0, 1])


def attack() -> dict[str, tuple[np.ndarray, float]]:
    """The face, and what can be read of it, with how alike the two are."""
    plain = clients()
    rows = np.stack([np.asarray(c.train[0]).reshape(SIZE, SIZE) for c in plain])
    true, usual = rows[0], rows.mean(axis=0)
    found = {
        "the face": true,
        "from its update": invert(update(plain[:1])),
        f"from the sum over {CLIENTS} clients": invert(update(plain)),
        f"from its update, epsilon = {PRIVACY.epsilon:g}": invert(update(clients(PRIVACY)[:1])),
    }
    return {name: (image, likeness(image, true, usual)) for name, image in found.items()}


def draw(found: dict[str, tuple[np.ndarray, float]], path: Path) -> None:
    """The pictures side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    places = figure.subplots(1, len(found))
    for place, (name, (image, alike)) in zip(places, found.items(), strict=True):
        place.imshow(np.clip(image, 0, 1), cmap="gray", vmin=0, vmax=1)
        place.set_title(f"{name}\nlikeness {alike:.2f}", fontsize=9)
        place.axis("off")
    figure.supxlabel("Synthetic data: drawn faces, not photographs", fontsize=8, color="0.35")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gradient-inversion.png"))
    given = parser.parse_args()
    found = attack()
    draw(found, given.out)
    for name, (_, alike) in found.items():
        print(f"{name}: likeness {alike:.2f}")


if __name__ == "__main__":
    main()
