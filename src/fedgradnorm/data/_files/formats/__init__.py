"""Formats of files other than tables: arrays, folders of images, rows that are read in pieces."""
