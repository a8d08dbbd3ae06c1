"""Runs and comparisons as tables."""
