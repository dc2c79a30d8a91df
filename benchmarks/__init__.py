"""What the suite itself costs, measured against code that does without it."""
