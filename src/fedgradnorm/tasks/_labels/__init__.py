"""Labels as people write them: lists of names, and texts in the place of class numbers."""
