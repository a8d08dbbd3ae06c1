"""Who runs the clients of a round. ``loop`` is the reference; all others must agree with it."""

from fedgradnorm.engines.base import Engine
from fedgradnorm.engines.loop import LoopEngine

__all__ = ["Engine", "LoopEngine"]
