"""Drawn faces: a synthetic stand-in for MTFL."""

from fedgradnorm.data.faces._faces import CLASSES, SHARES, TASKS, Faces, clients, generate

__all__ = ["CLASSES", "SHARES", "TASKS", "Faces", "clients", "generate"]
