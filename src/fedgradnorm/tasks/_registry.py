"""Every kind of task that is ours, by the name that a run stores."""

from __future__ import annotations

from fedgradnorm.tasks._kind import Kind
from fedgradnorm.tasks._kinds import Binary, Classification, Multilabel, Regression
from fedgradnorm.tasks._ordinal import Ordinal

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Classification(), Regression(), Binary(), Multilabel(), Ordinal())
}
