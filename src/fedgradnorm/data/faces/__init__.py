"""Drawn faces: a synthetic stand-in for MTFL."""

from fedgradnorm.data._source import Source
from fedgradnorm.data.faces._faces import Faces, clients, generate

__all__ = ["Faces", "clients", "generate"]

Source("faces", clients, "drawn faces, a stand-in for MTFL").register()
