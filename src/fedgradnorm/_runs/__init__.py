"""A run in memory and on disk: what was trained, its history, its folder, its checkpoints."""
