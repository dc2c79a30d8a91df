"""Whether a node is as good as arithmetic, its siblings and its past say: checks, and the battery that feeds them."""
