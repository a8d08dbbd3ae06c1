"""Columns that are more than plain numbers: categories, gaps, dates, places on a circle."""
