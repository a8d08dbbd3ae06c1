"""Kernels in Triton, for a GPU, imported where they are used: all else runs without Triton.

Each computes what plain code beside it computes too, and its users go without where it fails.
"""
