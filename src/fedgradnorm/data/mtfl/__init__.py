"""MTFL: real faces with five tasks (Zhang et al., ECCV 2014)."""

from fedgradnorm.data._source import Source
from fedgradnorm.data.mtfl._mtfl import MTFL, clients, prepare

__all__ = ["MTFL", "clients", "prepare"]

Source("mtfl", clients, "faces: the MTFL archive or folder", ("path", "boxes", "cache")).register()
