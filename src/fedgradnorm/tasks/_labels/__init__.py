"""Labels as people write them: lists of names, and texts instead of class numbers."""
