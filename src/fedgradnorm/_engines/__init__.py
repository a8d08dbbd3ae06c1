"""Who runs the clients of a round. ``loop`` is the reference; other executors agree with it."""

from fedgradnorm._engines.choice import make_engine
from fedgradnorm._engines.engine import Engine, Problem
from fedgradnorm._engines.examples import Batch, Plan
from fedgradnorm._engines.graph import LONGEST, Graphs
from fedgradnorm._engines.parts import Exported
from fedgradnorm._engines.ranked_engine import Journal, RankedEngine
from fedgradnorm._engines.tuning import Tuning

__all__ = [
    "LONGEST",
    "Batch",
    "Engine",
    "Exported",
    "Graphs",
    "Journal",
    "Plan",
    "Problem",
    "RankedEngine",
    "Tuning",
    "make_engine",
]
