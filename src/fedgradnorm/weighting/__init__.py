"""How the server weighs its clients: what a weighting is, and those that are made by class.

All others are made by name: ``method="mgda"`` in :func:`fedgradnorm.train` and in
:class:`fedgradnorm.Balancer`, ``fgn.methods()["mgda"].build()`` anywhere else.
"""

from fedgradnorm.weighting._base import Needs, Signals, Weighting
from fedgradnorm.weighting._fixed import Equal, Static
from fedgradnorm.weighting._gradnorm import GradNorm

__all__ = ["Equal", "GradNorm", "Needs", "Signals", "Static", "Weighting"]
