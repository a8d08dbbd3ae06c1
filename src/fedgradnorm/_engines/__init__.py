"""Who runs the clients of a round. ``loop`` is the reference; other executors agree with it."""

from fedgradnorm._engines.choice import EXECUTORS, Problem, make_engine
from fedgradnorm._engines.elsewhere import Elsewhere, own_part, with_others
from fedgradnorm._engines.engine import Engine, Plan
from fedgradnorm._engines.gradients import Batch
from fedgradnorm._engines.graph import LONGEST, Graphs
from fedgradnorm._engines.kept_clients import Exported
from fedgradnorm._engines.ranked_engine import RankedEngine, ranked_engine
from fedgradnorm._engines.ranks_journal import Journal, RanksJournal

__all__ = [
    "EXECUTORS",
    "LONGEST",
    "Batch",
    "Elsewhere",
    "Engine",
    "Exported",
    "Graphs",
    "Journal",
    "Plan",
    "Problem",
    "RankedEngine",
    "RanksJournal",
    "make_engine",
    "own_part",
    "ranked_engine",
    "with_others",
]
