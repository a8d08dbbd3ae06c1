"""What all tests share: one thread, a fixed search of hypothesis, and toys."""

from __future__ import annotations

import signal

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import nn

import toys
from fedgradnorm import Client

torch.set_num_threads(1)  # the toys are far too small for more
# A shell that runs the tests in the background has them ignore Ctrl-C, which some of them press.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("fixed")


@pytest.fixture
def clients() -> list[Client]:
    return toys.clients()


@pytest.fixture
def network() -> nn.Module:
    return toys.network()
