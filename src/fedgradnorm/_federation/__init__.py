"""Clients that share a network: one round after another, and who shares with whom."""
