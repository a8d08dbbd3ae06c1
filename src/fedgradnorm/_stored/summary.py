"""How a client is judged: its metric, and what the constant baseline scores by it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgradnorm.tasks._named_metrics import MAIN_METRICS

Row = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """The metric that a client's task names, and the scores of its constant baseline by metric.

    The constant baseline always predicts the majority class, or the mean.
    """

    metric: str | None = None
    constant: Mapping[str, float] = field(default_factory=dict)

    def choose(self, have: Container[str]) -> str:
        """The metric to show, of those that there are."""
        named = (self.metric,) if self.metric else ()
        return next((name for name in (*named, *MAIN_METRICS) if name in have), "loss")


NOT_JUDGED = Judged()


def judged(clients: Mapping[str, Any]) -> dict[str, Judged]:
    """How each client of a manifest is judged."""
    found = {}
    for name, info in clients.items():
        if isinstance(info, Mapping):
            metric, scores = info.get("metric"), info.get("baseline")
            table = scores if isinstance(scores, Mapping) else {}
            known = {k: float(v) for k, v in table.items() if isinstance(v, (int, float))}
            found[name] = Judged(metric if isinstance(metric, str) else None, known)
    return found
