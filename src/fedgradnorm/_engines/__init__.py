"""Who runs the clients of a round. ``loop`` is the reference; all others must agree with it."""

from fedgradnorm._engines.batched import Plan
from fedgradnorm._engines.choice import make_engine, make_unshared
from fedgradnorm._engines.joint import JointEngine
from fedgradnorm._engines.loop import LoopEngine
from fedgradnorm._engines.passes.adam_of_rows import adam_of_rows
from fedgradnorm._engines.protocol import Engine, Journal
from fedgradnorm._engines.roster import RosterEngine
from fedgradnorm._engines.stacked import StackedEngine
from fedgradnorm._engines.unshared import Unshared

__all__ = [
    "Engine",
    "JointEngine",
    "Journal",
    "LoopEngine",
    "Plan",
    "RosterEngine",
    "StackedEngine",
    "Unshared",
    "adam_of_rows",
    "make_engine",
    "make_unshared",
]
