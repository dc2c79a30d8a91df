"""Learning rate, loss scale, master weights."""
