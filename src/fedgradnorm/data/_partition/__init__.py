"""One data set dealt out among several clients."""
