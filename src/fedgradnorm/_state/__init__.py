"""What clients keep between rounds: one table, a row per client."""
