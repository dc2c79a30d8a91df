"""Clocks and counters: they know no model and no expected value."""
