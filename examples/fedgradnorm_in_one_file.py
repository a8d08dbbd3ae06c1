"""FedGradNorm in one file: Algorithm 2 of Mortaheb, Vahapoglu and Ulukus (2022), in plain PyTorch.

It imports nothing of this package and is what every engine of the package is tested against.
Run it: two tasks on the same inputs, one of them far louder than the other.

    python examples/fedgradnorm_in_one_file.py

Paper's symbols: omega = shared parameters, h = a client's head, p = weights (sum N), F = loss,
omega-tilde = the norm layer: the shared layer whose gradient is measured.
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def fedgradnorm(
    network,  # omega: a module from input to representation; left as it is
    heads,  # {client: module from representation to prediction}; left as they are
    losses,  # {client: function (prediction, target) -> scalar loss}
    data,  # {client: (x, y)}: all training rows, for the first loss F_0
    batch,  # function (client, round, step) -> (x, y)
    norm_layer,  # names of the parameters of omega whose gradient is measured
    rounds,
    active=None,  # function (round) -> names of the clients that participate; all by default
    head_steps=1,  # tau_h
    shared_steps=1,  # tau_omega
    gamma=0.9,
    lr=2e-4,  # beta
    weight_lr=0.004,  # alpha
    optimizer="adam",  # of heads, server and weights; local steps on omega are plain SGD
    floor=1e-3,
):
    """Returns the trained omega, the heads, and the weights p after every round."""
    omega = copy.deepcopy(network)
    heads = copy.deepcopy(heads)
    make = OPTIMIZERS[optimizer]
    server_optimizer = make(omega.parameters(), lr=lr)
    head_optimizer = {i: make(heads[i].parameters(), lr=lr) for i in heads}
    like = next(omega.parameters())
    # One scalar and one optimizer per client: whoever is away keeps weight and moments.
    p = {i: torch.ones(1, dtype=like.dtype, requires_grad=True) for i in heads}
    weight_optimizer = {i: make([p[i]], lr=weight_lr) for i in heads}
    weight = {i: p[i].detach().clone() for i in heads}  # p, scaled to sum to how many participate
    first_loss = {}
    trajectory = []

    for k in range(rounds):
        present = list(heads) if active is None else active(k)
        update, loss_ratio, grad_norm = {}, {}, {}

        for i in present:  # ---------------------------------------------------------- client i
            local = copy.deepcopy(omega)
            if i not in first_loss:
                with torch.no_grad():
                    first_loss[i] = losses[i](heads[i](local(data[i][0])), data[i][1])

            for s in range(head_steps):  # omega frozen, h_i moves
                x, y = batch(i, k, s)
                loss = losses[i](heads[i](local(x).detach()), y)
                head_optimizer[i].zero_grad()
                loss.backward()
                head_optimizer[i].step()

            mean_gradient = {name: torch.zeros_like(w) for name, w in local.named_parameters()}
            mean_loss = 0.0
            for s in range(shared_steps):  # h_i frozen, a local copy of omega moves
                x, y = batch(i, k, s)
                loss = losses[i](heads[i](local(x)), y)
                gradient = torch.autograd.grad(loss, list(local.parameters()))
                mean_loss = mean_loss + loss.detach() / shared_steps
                with torch.no_grad():
                    for (name, w), g in zip(local.named_parameters(), gradient, strict=True):
                        mean_gradient[name] += g / shared_steps
                        w -= lr * g

            update[i] = mean_gradient
            loss_ratio[i] = mean_loss / first_loss[i]
            grad_norm[i] = torch.cat([mean_gradient[name].flatten() for name in norm_layer]).norm()

        # ------------------------------------------------------------------------------ server
        n, share = len(present), sum(p[i].detach() for i in present)
        mean_ratio = sum(loss_ratio.values()) / n
        mean_length = sum(p[i].detach() * grad_norm[i] for i in present) / n
        for i in present:  # target is a constant: no gradient flows through it
            target = mean_length * (loss_ratio[i] / mean_ratio) ** gamma
            f_grad = (p[i] * grad_norm[i] - target).abs().sum()
            weight_optimizer[i].zero_grad()
            f_grad.backward()
            weight_optimizer[i].step()
        with torch.no_grad():
            for i in present:
                p[i].clamp_(min=floor)
            total = sum(p[i] for i in present)
            for i in present:  # together they keep what they had: all p sum to N, whoever is away
                p[i].mul_(share / total)
                weight[i] = p[i] * n / share

        for name, w in omega.named_parameters():  # the NEW weights step omega
            w.grad = sum(weight[i] * update[i][name] for i in present) / n
        server_optimizer.step()
        trajectory.append({i: weight[i].item() for i in heads})

    return omega, heads, trajectory


def main():
    torch.manual_seed(0)
    x = torch.randn(2000, 20)
    hidden = torch.tanh(x @ torch.randn(20, 3))
    targets = {
        "quiet": (hidden.sum(dim=1) > 0).long(),  # two classes
        "loud": 30 * hidden[:, :1].square(),  # numbers around ten: squared errors around 200
    }
    losses = {"quiet": F.cross_entropy, "loud": F.mse_loss}

    def batch(client, k, s):
        rows = torch.randint(len(x), (64,), generator=torch.Generator().manual_seed(1000 * k + s))
        return x[rows], targets[client][rows]

    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    heads = {"quiet": nn.Linear(64, 2), "loud": nn.Linear(64, 1)}
    data = {client: (x, y) for client, y in targets.items()}
    norm_layer = ("2.weight", "2.bias")
    for title, weight_lr in (("equal weights", 0.0), ("FedGradNorm", 0.004)):
        omega, trained, p = fedgradnorm(
            network,
            heads,
            losses,
            data,
            batch,
            norm_layer,
            rounds=400,
            lr=1e-3,
            weight_lr=weight_lr,
        )
        with torch.no_grad():
            last = {i: losses[i](trained[i](omega(x)), y).item() for i, (_, y) in data.items()}
        print(
            f"{title:>13}: loss of quiet {last['quiet']:.3f}, of loud {last['loud']:7.3f};"
            f" weights {p[-1]['quiet']:.2f}, {p[-1]['loud']:.2f}"
        )


if __name__ == "__main__":
    main()
