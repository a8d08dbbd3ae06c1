"""``fgn.train``: the loop over rounds, what it says, keeps and records."""
