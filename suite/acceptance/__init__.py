"""Is this node good? The battery of measurements here, the verdicts in `judge/`."""
