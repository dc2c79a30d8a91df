"""Traces of training steps, as profilers export them."""
