"""MATLAB files with a cell for each client."""
