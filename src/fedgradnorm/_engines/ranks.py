"""The processes of one run under torchrun, and the few things they say to each other.

Without torchrun there is one rank and nothing is said. Every collective here is called by all ranks
in the same order, with the same shapes; one that fails means that a rank is gone.
"""

from __future__ import annotations

import atexit
import copy
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError, RankLost
from fedgradnorm._launched import asked_for

TIMEOUT = "FEDGRADNORM_RANK_TIMEOUT"  # seconds to wait for the slowest rank
PATIENCE = 600.0


@dataclass(frozen=True)
class World:
    """Which rank this process is, of how many."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in place; bit for bit the same on every rank."""
        if self.size > 1:
            with _noticing_loss(self):
                dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _noticing_loss(self):
            dist.all_gather_object(values, value)
        return values

    def to_leader(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on rank 0; nothing on the others."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size if self.leads else []
        with _noticing_loss(self):
            dist.gather_object(value, values if self.leads else None, dst=0)
        return values

    def leaders(self, value: Any) -> Any:
        if self.size == 1:
            return value
        box = [value]
        with _noticing_loss(self):
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def same_network(self, network: nn.Module) -> nn.Module:
        """A copy with rank 0's values, whatever each rank's generator made of it."""
        if self.size == 1:
            return network
        network = copy.deepcopy(network)
        state = {key: value.cpu() for key, value in network.state_dict().items()}
        network.load_state_dict(self.leaders(state))
        return network


def world() -> World:
    """The ranks of this run; they meet at the first call."""
    if asked_for() > 1 and not dist.is_initialized():
        _meet()
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World()


def _meet() -> None:
    # Its functions have the group of the moment as a default: imported later, by whoever, they
    # would hold this one, and its threads, for ever.
    import torch.distributed.nn

    here = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(here % gpus)
    own_gpu = 0 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= gpus
    backend = "cpu:gloo,cuda:nccl" if own_gpu else "gloo"
    try:
        seconds = float(os.environ.get(TIMEOUT, PATIENCE))
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the ranks cannot meet: {reason}; start them with torchrun") from error
    atexit.register(_part)  # left to the end of the process, its threads may abort it


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _noticing_loss(world: World) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise RankLost(
            f"rank {world.rank} of {world.size}: another rank has died or does not answer "
            f"({reason}); the last checkpoint is intact, resume with any number of ranks"
        ) from error


@contextmanager
def stoppable(world: World) -> Iterator[None]:
    """torchrun ends all ranks (SIGTERM) when one has died: say so, instead of just ending."""
    if world.size == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise RankLost(
            f"rank {world.rank} of {world.size} was told to end, as when another rank has died; "
            "the last checkpoint is intact, resume with any number of ranks"
        )

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except RankLost:
        # It ends by itself now: a signal that comes late must not keep it from saying why.
        before = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
