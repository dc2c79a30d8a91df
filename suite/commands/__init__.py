"""One module a command: parses, calls, prints; nothing else."""
