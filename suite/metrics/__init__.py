"""Names and units of figures, comparison of two sets, statistics of launches."""
