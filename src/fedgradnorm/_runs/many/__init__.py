"""Runs of many clients: quantiles over clients in the place of a row for each of them."""
