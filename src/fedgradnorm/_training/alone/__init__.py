"""Clients that train alone: as a choice at a run's end, and to find out what joining is worth."""
