"""A run as a TOML file: read, checked, changed from the command line, written back."""
