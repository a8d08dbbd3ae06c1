"""Which executor runs the clients: the fastest that has no objection, and why.

``joint`` makes one pass for everybody, ``vmap`` runs all clients of a part at once, ``loop`` one
after another (the reference, which has no objections). What an executor cannot do is listed in its
``why_not`` function here, and nowhere else.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.engine import Engine, Problem
from fedgradnorm._engines.gradients import BlockGradients
from fedgradnorm._engines.joint import NormTap
from fedgradnorm._engines.parts import backward_hooks
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.executor import AUTO, EXECUTORS, Executor
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._given_inputs import form_words
from fedgradnorm.models._input_rows import (
    Inputs,
    call,
    call_arguments,
    concatenated,
    has_sequences,
    in_chunks,
    row_form,
)
from fedgradnorm.models._streamed import Streamed
from fedgradnorm.weighting import Needs

log = logging.getLogger("fedgradnorm")

PROBE_EXAMPLES = 4
NUMBERS_READ = 1 << 26  # of examples that are read from a disk, in one round
LARGE = 100_000
"""Parameters above which a CPU steps one network at a time: a single one then fills its cores.
So does one with convolutions, for which vmap has no fast kernels on a CPU."""
COPIES = 8  # of a network, for each client of a vmapped call: parameters, gradients, activations
ALL_DIFFER = "no two clients can be run in one call"
BYTES_AT_ONCE = {"cpu": 1 << 30, "cuda": 16 << 30}


def joint_why_not(problem: Problem) -> str | None:
    """Why one pass for everybody would be another training, or None if it would not."""
    spec = problem.spec
    if not problem.shares:
        return "every client has a network of its own"
    if spec.shared_steps != 1:
        return f"shared_steps = {spec.shared_steps}, so the clients' networks differ"
    if spec.sends != "gradient" or spec.report_loss != "before":
        return "it sends raw gradients and losses before the step only"
    if problem.needs & (Needs.GRADIENT | Needs.GRAM):
        return "the weighting needs every client's gradient"
    if spec.clip is not None:
        return "clip needs the length of every client's gradient"
    for client in problem.clients:
        if client.head is not None and (reason := why_impure(client.head, None)):
            return f"the head of client {client.name!r} has {reason}"
    if reason := impure(problem):
        return reason
    trial = copy.deepcopy(problem.network)
    tap = NormTap(trial, problem.norm_layer)  # whether the norms can be taken from one pass
    with torch.enable_grad():
        call(trial, _probe(problem))
    return tap.problem() or _reading_why_not(problem)


def impure(problem: Problem) -> str | None:
    """Why an example's features depend on more than the example and the shared network."""
    clients = problem.clients
    if private := private_names(problem.network):
        return f"{len(private)} parameters of the network are private to each client"
    for client in clients:
        if client.stem is not None:
            return f"client {client.name!r} has a stem"
        if client.privacy is not None:
            return f"client {client.name!r} clips the gradient of every example (privacy)"
    forms = {form_words(row_form(client.train[0])) for client in clients}
    if len(forms) > 1:
        return f"clients have inputs of different shapes {sorted(forms)}"
    if any(has_sequences(_some_examples(client)) for client in clients):
        return "sequences are padded to the longest of each batch"
    reason = why_impure(problem.network, _probe(problem))
    return None if reason is None else f"the shared network has {reason}"


def vmap_why_not(problem: Problem) -> str | None:
    """Why clients cannot be run at once; whether vmap can run the network is tried later."""
    for name, layer in problem.network.named_modules():
        if any(backward_hooks(layer)):
            return f"layer {name!r} has a backward hook, which vmap would not call"
    return _reading_why_not(problem)


def _maker(name: str) -> Callable[[Problem], Engine]:
    return lambda problem: Engine(problem, name, impure(problem) is None, _chunk(problem))


Executor("joint", _maker("joint"), joint_why_not, auto=True).register()
Executor("vmap", _maker("vmap"), vmap_why_not, auto=True).register()
Executor("loop", _maker("loop"), auto=True).register()


def make_engine(name: str, problem: Problem) -> Engine:
    """An engine with the executor of this name, or with "auto" the fastest without objections."""
    if not problem.clients:  # of a rank without any
        return Engine(problem)
    objections = dict[str, str]()
    for executor, one in EXECUTORS.items() if name == AUTO else [(name, EXECUTORS.find(name))]:
        if name == AUTO and not one.auto:
            continue
        reason = one.why_not(problem)
        if reason is None:
            engine = one.engine(problem)
            engine.name = executor
            if executor == "vmap":
                reason = _try_vmap(engine)
            if reason == ALL_DIFFER and (name != AUTO or problem.device.type == "cuda"):
                reason = None  # on a GPU a graph pays all the same
            if reason is None:
                words = [f"not {key}: {why}" for key, why in objections.items()]
                if executor == "vmap" and engine.chunk == 1:
                    words.append("large networks in turn")
                log.info("executor %s%s", executor, f" ({'; '.join(words)})" if words else "")
                return engine
        if name != AUTO:
            raise ConfigError(f"executor {name!r} cannot run this: {reason}; use executor='auto'")
        objections[executor] = reason
    raise AssertionError("the loop has no objections")


def _chunk(problem: Problem) -> int:
    network, device = problem.network, problem.device
    size = sum(p.numel() for p in network.parameters() if p.requires_grad)
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in network.modules())
    if device.type == "cpu" and (size > LARGE or convolves):
        return 1
    width = next(network.parameters()).element_size()
    return max(1, BYTES_AT_ONCE[device.type] // (COPIES * width * max(1, size)))


def _try_vmap(engine: Engine) -> str | None:
    """Why vmap cannot run a network or head, found out on two clients of every part."""
    names = engine.names if not engine.many else engine.names[:2]
    tried = False
    for group in engine.table.group(names):
        count = min(2, len(group.names))
        if (count < 2 and not group.part.padded) or not engine.runs_at_once(group):
            continue
        tried, some = True, group.only(torch.arange(count).numpy())
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                batch = engine.examples.block(some, engine.examples.batches.of_round(0, some.names))
            part, row = some.part, engine.rows_of(some)
            part.whole.train()
            networks = engine.network.vector.detach().clone().expand(count, -1)
            with torch.random.fork_rng(devices=[]):
                gradients = BlockGradients(part, batch, count, part.task)
                gradients.of(networks, row, 0, shared=True, own=True)
        except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
            return f"vmap cannot run it ({(str(error).splitlines() or ['?'])[0][:160]})"
    return None if tried else ALL_DIFFER


def _reading_why_not(problem: Problem) -> str | None:
    """Whether a round of everybody's examples is too large to be read at once."""
    numbers = sum(
        problem.spec.steps * min(problem.batch_size or c.drawn, c.drawn) * c.train[0].numbers
        for c in problem.clients
        if isinstance(c.train[0], Streamed)
    )
    if numbers <= NUMBERS_READ or problem.many:
        return None
    return f"a round reads {numbers:,} numbers from where they are, more than it can hold"


def _probe(problem: Problem) -> Inputs:
    some = [_some_examples(client)[:PROBE_EXAMPLES] for client in problem.clients[:2]]
    return as_input(concatenated(some), problem.network, "cpu")


def _some_examples(client: Client) -> Inputs:
    """A client's training examples; the first one where they are read as they are needed."""
    x: Inputs = client.train[0]
    return x.first if isinstance(x, Streamed) else x


@torch.no_grad()
def why_impure(module: nn.Module, x: Inputs | None) -> str | None:
    """Why an example's output depends on chance, on its batch or on earlier batches, if it does.

    Beyond layers that are known to, this is tried out, not guessed from names.
    """
    mixing = "dropout or batch statistics"
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return mixing
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            return mixing
    if x is None:
        return None
    trial = copy.deepcopy(module).train()
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        whole = call(trial, x)
        if not torch.equal(before, torch.get_rng_state()):  # however seldom it makes a difference
            return mixing
        again = call(trial, x)
        halves = torch.cat([call(trial, half) for half in in_chunks(x, -(-len(x) // 2))])
    loose = 1e-3 * float(whole.abs().max()) + 1e-6  # far above rounding, far below statistics
    if not all(torch.allclose(whole, one, rtol=0, atol=loose) for one in (again, halves)):
        return mixing
    now = dict(trial.named_buffers())
    if any(not torch.equal(now[name], buffer) for name, buffer in module.named_buffers()):
        return "buffers that change in training"
    args, kwargs = call_arguments(x)

    def row(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
        output: Tensor = trial(*(a[None] for a in args), **{k: a[None] for k, a in kwargs.items()})
        return output

    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.vmap(row, randomness="different")(args, kwargs)
    except Exception as error:  # that vmap cannot run an operator is no objection
        if "vmap: It looks like" in str(error):
            return "control flow that depends on its inputs"
    return None
