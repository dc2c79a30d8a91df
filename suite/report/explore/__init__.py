"""The page with controls: a run's prediction, again at each change."""
