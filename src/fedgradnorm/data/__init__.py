"""Where clients come from: embedded data, public sets, and a user's own files."""
