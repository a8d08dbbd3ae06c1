"""Run folders read back, and which of them belong together: one reader, one rule."""
