"""The figures expected of a launch."""
