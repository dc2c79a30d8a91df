"""Costs of the suite itself, measured against code that does without it."""
