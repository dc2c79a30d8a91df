"""Starts, guards and ends ranks; no torch."""
