"""How this process was started, as torchrun's environment says; known before any rank was met."""

from __future__ import annotations

import os


def asked_for() -> int:
    """How many ranks torchrun was asked for; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of them this process is; 0 without torchrun."""
    return int(os.environ.get("RANK", "0")) if asked_for() > 1 else 0


def is_leader() -> bool:
    """Whether this process writes files and prints."""
    return rank() == 0
