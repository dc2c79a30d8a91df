"""Are many nodes good? Batteries on each, links between them, runs over groups, and one table."""
