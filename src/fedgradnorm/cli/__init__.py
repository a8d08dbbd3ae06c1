"""The command line: ``fedgradnorm``, also ``python -m fedgradnorm``."""

from fedgradnorm.cli.app import app, main

__all__ = ["app", "main"]
