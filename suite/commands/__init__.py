"""One command a module: parses, calls, prints; nothing else."""
