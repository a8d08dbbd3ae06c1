"""Differential privacy in a round: clipped, noisy gradients, noisy sums and budgets."""
