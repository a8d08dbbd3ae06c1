"""Rows that stay where they lie, on a disk or in a Dataset, and are read batch by batch."""
