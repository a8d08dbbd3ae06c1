"""Studies that no user imports: each has a command of its own, and none is in the wheel."""
