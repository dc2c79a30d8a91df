"""Predictions: pure functions of frozen records; no torch, files, clock or randomness."""
