"""Reproduces published LLM training runs: predicts, executes, counts and explains the difference."""
