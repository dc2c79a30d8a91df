"""The training loop of one rank, step by step, with its instruments."""
