"""Differential privacy: what is asked for, what it costs, and clipped sums with noise."""
