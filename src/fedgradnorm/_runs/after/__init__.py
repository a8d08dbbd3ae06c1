"""What is done with a finished run: a program of one client, a new start, a later client."""
