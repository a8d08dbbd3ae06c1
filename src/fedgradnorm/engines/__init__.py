"""Who runs the clients of a round. ``loop`` is the reference; all others must agree with it."""

from fedgradnorm.engines.base import Engine
from fedgradnorm.engines.choice import make_engine
from fedgradnorm.engines.joint import JointEngine
from fedgradnorm.engines.loop import LoopEngine
from fedgradnorm.engines.stacked import StackedEngine

__all__ = ["Engine", "JointEngine", "LoopEngine", "StackedEngine", "make_engine"]
