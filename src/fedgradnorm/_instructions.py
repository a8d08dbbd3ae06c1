"""Whether products in bfloat16 can be taken in this process, found out by a child process.

A virtual machine may advertise instructions (AMX) that it does not let a process use. oneDNN
believes what is advertised, and the first product in bfloat16 ends the process with SIGILL.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from functools import cache

import torch
from torch import nn

from fedgradnorm._errors import ConfigError

log = logging.getLogger("fedgradnorm")

LIMIT = "ONEDNN_MAX_CPU_ISA"
"""The variable that holds oneDNN to older instructions; it is read once, at oneDNN's first use."""
OLDER = ("AVX512_CORE_BF16", "AVX512_CORE")
"""What it is set to: without AMX, then without the bfloat16 instructions of AVX-512 either."""
DEADLY = tuple(
    getattr(signal, name)
    for name in ("SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE")
    if hasattr(signal, name)  # Windows has no SIGBUS
)
PATIENCE = 30.0
"""Seconds that a fork may take; it needs about 0.02, but may wait for a lock nobody holds."""


def require_bf16(device: torch.device) -> None:
    """A ConfigError if products in bfloat16 on ``device`` would end this process."""
    if device.type == "cpu" and (reason := obstacle()):
        raise ConfigError(reason)


@cache
def obstacle() -> str:
    """Why no product in bfloat16 can be taken in this process; empty if it can.

    A fork has what this process has used of oneDNN. So if the fork survives with the variable
    set, this process does, too.
    """
    if _survives():
        return ""
    for older in OLDER:
        if _fork_survives(older):
            os.environ[LIMIT] = older
            log.warning("products in bfloat16 kill a process on this CPU; now %s=%s", LIMIT, older)
            return ""
    return _reason(next((older for older in OLDER if _fresh_process_survives(older)), None))


def _reason(remedy: str | None) -> str:
    restart = f"start again with {LIMIT}={remedy} in the environment, or " if remedy else ""
    return (
        'precision = "bf16" would kill this process: the CPU advertises instructions that it does '
        f'not carry out (tried in a child process); {restart}set precision = "float32"'
    )


def products() -> None:
    """A linear layer and a convolution in bfloat16, forward and backward, as engines take them.

    One thread, because a fork has none of its parent's others, and must not wait for them.
    """
    torch.set_num_threads(1)
    layers = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(32 * 6 * 6, 64))
    plain = torch.ones(8, 16, 8, 8, requires_grad=True)
    for images in (plain, plain.contiguous(memory_format=torch.channels_last)):
        with torch.autocast("cpu", torch.bfloat16):
            output = layers(images)
        output.float().sum().backward()


def _survives() -> bool:
    """Whether a process like this one survives the products."""
    answer = _fork_survives()
    return _fresh_process_survives() if answer is None else answer


def _fork_survives(limit: str | None = None) -> bool | None:
    """Whether a fork of this process survives the products; None if that cannot be found out."""
    if sys.platform != "linux" or not hasattr(
        os, "fork"
    ):  # elsewhere libraries do not expect to be forked
        return None
    try:
        child = _fork()
        if child == 0:
            _try_and_exit(limit)
        status = _wait(child)
    except OSError:  # no more processes, or somebody else waits for every child
        return None
    return None if status is None else not _died(os.waitstatus_to_exitcode(status))


def _fork() -> int:
    """A fork that no signal's handler can interrupt: the child must not run its parent's code."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - set(DEADLY))
    child = -1
    try:
        with warnings.catch_warnings():  # of threads: the child needs none, and has a time limit
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        return child
    finally:
        if child != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _died(code: int) -> bool:
    """Whether the CPU, and not a person or the system, ended a process with this code."""
    return -code in DEADLY


def _try_and_exit(limit: str | None) -> None:
    """The fork's whole life: silent, without a core file, and never back in its parent's code.

    An exception is no answer: the parent would survive it, too, and say what it is.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()
        if limit is not None:
            os.environ[LIMIT] = limit
        products()
    finally:
        os._exit(0)


def _wait(child: int) -> int | None:
    """The child's end; None if it took too long and was killed."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _fresh_process_survives(limit: str | None = None) -> bool:
    """Whether a new Python survives the products; takes seconds, and is safe with any threads."""
    code = "from fedgradnorm._instructions import products; products()"
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **({LIMIT: limit} if limit else {})}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, check=False
    )
    return not _died(ended.returncode)
