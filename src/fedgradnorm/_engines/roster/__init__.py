"""Many registered clients of which few take part in a round: a round costs what those cost."""

from fedgradnorm._engines.roster.roster_engine import RosterEngine, roster_obstacle

__all__ = ["RosterEngine", "roster_obstacle"]
