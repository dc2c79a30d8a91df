"""Faults that are injected into the acceptance battery, one at a time, and what must come of each."""
