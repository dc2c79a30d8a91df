"""Logs of training runs as frameworks print them: steps, the time of each, and what else a line says."""
