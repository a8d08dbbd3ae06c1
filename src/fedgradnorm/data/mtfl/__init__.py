"""MTFL: real faces with five tasks (Zhang et al., ECCV 2014)."""

from fedgradnorm.data.mtfl._mtfl import CLASSES, MTFL, SIZE, TASKS, Split, clients, prepare

__all__ = ["CLASSES", "MTFL", "SIZE", "TASKS", "Split", "clients", "prepare"]
