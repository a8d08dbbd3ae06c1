"""The round of a private client: its plan, its noise, its work."""
