"""One round: settings, who takes part, the client's work, the server's step, evaluation."""
