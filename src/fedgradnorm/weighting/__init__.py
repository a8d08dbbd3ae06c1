"""How the server weighs its clients: one method, one file, one page."""

from fedgradnorm.weighting.base import Needs, Signals, Weighting
from fedgradnorm.weighting.by_task import ByTask
from fedgradnorm.weighting.fixed import BySize, Equal, Static
from fedgradnorm.weighting.gradnorm import GradNorm

__all__ = ["BySize", "ByTask", "Equal", "GradNorm", "Needs", "Signals", "Static", "Weighting"]
