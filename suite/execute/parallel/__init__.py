"""Wraps a single-device model for several ranks."""
