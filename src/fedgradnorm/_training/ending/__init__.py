"""The end of a run: when it comes, and which states are kept."""
