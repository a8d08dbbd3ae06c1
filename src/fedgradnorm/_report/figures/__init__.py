"""Runs, comparisons and data as pictures."""
