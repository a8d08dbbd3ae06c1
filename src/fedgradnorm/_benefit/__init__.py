"""What a client gains by joining, from the same held-out rows under two trainings."""
