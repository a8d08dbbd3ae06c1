"""From settings to a finished run: training, storing, resuming, comparing."""
