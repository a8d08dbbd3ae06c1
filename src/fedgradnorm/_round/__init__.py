"""One round: settings, participation, the client's work, the server's step, evaluation."""
