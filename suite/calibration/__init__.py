"""Measures this machine into a profile."""
