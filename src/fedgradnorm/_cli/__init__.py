"""The command line: ``fedgradnorm``, also ``python -m fedgradnorm``."""

from fedgradnorm._cli.app import app, main

__all__ = ["app", "main"]
